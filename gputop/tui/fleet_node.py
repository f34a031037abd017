"""A node that is opened out of the screen over many: its whole dashboard, over the frames that it sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from gputop.fleet.asking import NodeAnswer, read_stacks
from gputop.fleet.link import UP
from gputop.fleet.questions import Nodes, Questions
from gputop.model.frame import Frame, Header
from gputop.stacks.group import group
from gputop.stacks.lines import text_lines, weigh_stacks
from gputop.system.text import clean, counted
from gputop.tui import bindings
from gputop.tui.dashboard import Actions, DashboardScreen
from gputop.tui.feed import Context
from gputop.tui.stacks_box import StacksScreen, Taken

BACK_S = 600.0  # s of a node's past that come when it is opened: all that it keeps
NODE_REST_S = 0.25  # s between two drawings
DRAWN_S = 1.0  # s between two drawings while the past is read in
ANEW_S = 15.0  # s without a frame, after which a node that is up is asked again: its link has restarted
MOST_QUEUED = 600  # items that wait for the dashboard: a minute; then the node is left unread until there is room


class NodeStream:
    """The stream of one node, from ten minutes ago on, for the feed of a dashboard."""

    def __init__(self, nodes: Nodes, host: str, rest: Callable[[], None]) -> None:
        self._nodes, self._host, self._rest = nodes, host, rest
        self._items: SimpleQueue[Header | Frame] = SimpleQueue()
        self._closed = False
        self._asked_s = self._rested_s = 0.0

    def __iter__(self) -> Iterator[Header | Frame]:
        self._nodes.tap(self._host, self._items.put, lambda: self._items.qsize() < MOST_QUEUED)
        self._ask(BACK_S)
        while not self._closed:
            try:
                yield self._items.get(timeout=NODE_REST_S)
            except Empty:
                if time.monotonic() - self._asked_s > ANEW_S and self._nodes.poll()[self._host].state == UP:
                    self._ask(0.0)  # its link has restarted
                continue
            self._asked_s = time.monotonic()
            if self._items.empty() or time.monotonic() - self._rested_s > DRAWN_S:  # ten minutes take a while: they are drawn as they come
                self._rest()
                self._rested_s = time.monotonic()

    def _ask(self, back_s: float) -> None:
        self._asked_s = time.monotonic()
        self._nodes.ask(self._host, "frames", back_s=back_s)

    def ending(self) -> str:
        return "closed"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._nodes.tap(self._host, None)
            self._nodes.ask(self._host, "frames", back_s=-1.0)


class NodeStacks(StacksScreen):
    """`s` on the dashboard of a node: the node takes the stacks; while looking back, those in its stream are shown."""

    def __init__(self, context: Context, pids: list[int] | None, host: str, questions: Questions) -> None:
        super().__init__(context, pids)
        self._host, self._questions = host, questions

    def on_mount(self) -> None:
        if self.view.at_ns is not None:
            super().on_mount()
        else:
            self.action_take(False)

    def action_take(self, native: bool) -> None:
        pids = self._find_pids()
        if native:
            self._set_status(f"native frames need gputop on {self._host}: gputop stacks --native")
        elif not pids:
            self._set_status("no trainer runs there: select a process first (↑↓)")
        else:
            self._set_status(f"asking {self._host} for stacks …")
            self._questions.ask(self._host, "stacks", self._take_answer, pids=pids)

    def _take_answer(self, host: str, answer: NodeAnswer) -> None:
        try:
            if answer.error:
                raise ValueError(answer.error)
            stacks = read_stacks(answer.data)
        except ValueError as error:
            with self.session.lock:
                is_kept = self.session.stacks_at(self.session.now_ns, self.pids) is not None
            if is_kept:
                self._show_recorded()
            else:
                self._show_problem(clean(f"{host}: {error}", 120))
            return
        heading = f"{counted(len(stacks), 'stack')} of {counted(len({stack.pid for stack in stacks}), 'process')}, taken by {host}"
        self._show(Taken(heading, text_lines(group(stacks, self._roles)), weigh_stacks(stacks)))


class OpenedActions(Actions):
    """Actions of a dashboard that lies over the nodes: Esc goes back to them if there is nothing to clear."""

    def action_clear(self) -> None:
        if self.can_clear:
            super().action_clear()
        else:
            self.go_back()

    @property
    def can_clear(self) -> bool:
        """True if Esc has something to clear: a filter, a selection, or the cursor of a look back."""
        view = self._view
        return self._filter_line.is_open or view.selected is not None or bool(view.pattern) or view.end_ns is not None

    def go_back(self) -> None:
        """Show the nodes again."""
        self._screen.app.pop_screen()


class NodeActions(OpenedActions):
    """Actions of a dashboard that shows one node: the node takes the stacks."""

    def stacks_screen(self, pids: list[int] | None) -> StacksScreen:
        screen = self._screen
        assert isinstance(screen, NodeScreen)
        return NodeStacks(self._context, pids, screen.host, screen.questions)


class NodeScreen(DashboardScreen):
    """The dashboard of a node; its stream ends with it."""

    KEYS = bindings.NODE

    def __init__(self, context: Context, host: str, questions: Questions) -> None:
        self.host, self.questions = host, questions
        super().__init__(context, NodeActions)

    def on_unmount(self) -> None:
        super().on_unmount()
        self.context.feed.close()
