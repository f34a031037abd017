"""The screen over many nodes as lines: header, the worst job and its late rank, jobs, nodes, a strip of all ranks, keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from msgspec import Struct

from gputop.findings import message
from gputop.findings.policy import LOST, QUARTER
from gputop.findings.verdict import SEVERITY_COLOURS, Ledger
from gputop.fleet.jobs import LATE, TROUBLED, UNKNOWN, WAITS, WORKS, Job, JobRank, Sight
from gputop.fleet.overview import IDLE, SILENT, SORTS, Alike, NodeRow, Overview, fold
from gputop.stream.reach.hosts import fold as fold_hosts
from gputop.system.text import cell_width, clean, counted, cut, fit
from gputop.tui.draw import Line, Span, duration, time_of_day
from gputop.tui.draw import fleet_chosen as chosen
from gputop.tui.draw.columns import TableColumn, cells, scrolled, titles, total
from gputop.tui.draw.edges import Bar, Key, key_lines, scrub_line
from gputop.tui.draw.lanes import merge
from gputop.tui.draw.search import matches
from gputop.tui.draw.view import View
from gputop.tui.draw.why import MOST_WIDE

NODES, JOBS, RANKS = VIEWS = ("nodes", "jobs", "ranks")
WIDE = 130  # columns from which jobs and nodes stand below each other, and nodes have the host's columns
TALL = 30  # rows, the same
LEAST_RANKS = 6  # rows that are left below the nodes, from which the ranks of the job stand there: blank, heading, four ranks
LEAST_CHOSEN, MOST_CHOSEN = 5, 22  # rows of the chosen node below the nodes: heading, verdict and lanes at least
ROOMY = 14  # rows from which the nodes leave some to the chosen one
MOST_SERVERS = 8  # servers of a job whose requests are shown
LANE_S, WIDE_LANE_S = 120, 60  # s that a node's lane shows
_GLYPHS = {WORKS: ("·", "good"), WAITS: ("▒", "warn"), LATE: ("█", "crit"), TROUBLED: ("▲", "crit"), UNKNOWN: ("?", "dim")}
_MARKS = {
    LATE: ("●", "crit"), TROUBLED: ("▲", "crit"), WAITS: ("○", "warn"), WORKS: ("✓", "good"), UNKNOWN: ("?", "dim"), IDLE: ("–", "dim"),
}  # fmt: skip
KEYS: tuple[Key, ...] = (
    ("q", "quit", "quit"), ("j", "jobs", "view('jobs')"), ("n", "nodes", "view('nodes')"), ("r", "ranks", "view('ranks')"),
    ("/", "filter", "filter"), ("o", "sort", "sort"), ("Enter", "open", "open"), ("s", "stacks", "stacks"), ("?", "help", "help"),
    ("e", "why", "explain"), ("c", "copy fix", "copy_fix"), ("R", "save", "save"),
)  # fmt: skip
PAST_KEYS: tuple[Key, ...] = (
    *KEYS[:1], ("?", "help", "help"), ("space", "play", "pause"), ("←→", "time", "scrub(-1)"), ("<>", "speed", "speed(1)"),
    ("()", "10 s", "jump(10)"),
    *(key for key in KEYS[1:] if key[0] in "jnr/oEntere"), ("{}", "1 min", "jump(60)"), ("0$", "start, end", "edge(0)"),
)  # fmt: skip
VERDICT_KEYS: tuple[Key, ...] = (
    ("[Enter]", "", "open"), ("[s]", "stacks of all ranks now", "stacks"), ("[e]", "why", "explain"), ("[R]", "save 10 min of all", "save"),
)  # fmt: skip


class Choice(Struct):
    """Choices of the user."""

    view: str = NODES
    sort: str = "worst"
    pattern: str = ""
    selected: str = ""  # host of the selected row
    job: str = ""  # key of the chosen job; empty: the worst
    moment: Bar | None = None  # of recordings: the bar of the time that they hold
    width: int = 80
    height: int = 24
    ascii_only: bool = False
    top: int = 0  # first row of the ranks that is shown


class Page(Struct):
    """The screen: its lines, and which node or job each row is about."""

    lines: list[Line]
    hosts: dict[int, str] = {}  # line -> host
    jobs: dict[int, str] = {}  # line -> key of the job
    lane_at: int = 0  # column where the lanes begin
    lane_s: int = 0  # seconds in each of their cells
    bar_at: int = -1  # line of the bar of time; -1 without it


def chosen_job(fleet: Overview, choice: Choice) -> Job | None:
    """The job that the verdict and the ranks are about."""
    return next((job for job in fleet.jobs if job.key == choice.job), fleet.jobs[0] if fleet.jobs else None)


def shown_rows(fleet: Overview, choice: Choice) -> list[NodeRow]:
    """The nodes that the filter finds, in their order."""
    rows = SORTS[choice.sort](fleet.rows)
    return [row for row in rows if matches(choice.pattern, row.texts)] if choice.pattern else rows


def chosen_row(fleet: Overview, choice: Choice) -> NodeRow | None:
    """The node that the lower half is about: the selected one, else that of the late rank, else the worst; None without nodes."""
    job = chosen_job(fleet, choice)
    late = job.late[0].host if job is not None and job.late else ""
    rows = {row.host: row for row in shown_rows(fleet, choice)}
    return rows.get(choice.selected) or rows.get(late) or next(iter(rows.values()), None)


def page(
    fleet: Overview, choice: Choice, *, clock: str, own: str, note: str, lanes: bool = True, mode: Span = ("● LIVE 1 s", "good"),
    keys: Sequence[Key] = KEYS,
) -> Page:  # fmt: skip
    """The whole screen. ``clock``: the time of day; ``own``: gputop's own cost; ``note``: text for the last line in place of ``keys``;
    ``mode``: live, or how recordings are played."""
    job, width, height = chosen_job(fleet, choice), choice.width, choice.height
    wide = width >= WIDE and height >= TALL
    found = Page([_header(fleet, job, width, clock, own if width >= 110 else "", mode)])
    if height >= 8:
        found.lines += _verdict(fleet, job, choice, keys=height >= 14 and lanes)
    node = chosen_row(fleet, choice) if lanes and height >= 14 else None
    if node is not None and (offered := chosen.fix_line(node, width)):
        found.lines.append(offered)
    bar = [] if choice.moment is None or height < 8 else [scrub_line(choice.moment, width)]
    foot = [
        *(_strip(job, width, min(4, (height - 12) // 4)) if choice.view != RANKS else []),
        *bar, *(key_lines(View(width=width), note, keys)[:1] if height >= 5 else []),
    ]
    found.bar_at = height - 2 if bar else -1
    room = max(0, height - len(found.lines) - len(foot))
    if choice.view == JOBS or (wide and choice.view == NODES and len(fleet.jobs) > 1):
        jobs_room = room if choice.view == JOBS else min(len(fleet.jobs) + 1, max(2, room // 3))
        _add_jobs(found, fleet, choice, jobs_room)
        room -= jobs_room
    if choice.view == RANKS:
        _add_ranks(found, job, choice, room)
    elif choice.view == NODES:
        before = len(found.lines)
        told = [] if node is None else chosen.lines(node, list(fleet.past.get(node.host, ())), fleet.seconds, width)[:MOST_CHOSEN]
        kept = min(len(told), room // 2) if room >= ROOMY else 0
        _add_nodes(found, fleet, choice, room - kept, wide=wide, lanes=lanes)
        left = room - (len(found.lines) - before)
        if left >= LEAST_CHOSEN:
            found.lines += told[:left]
            left -= len(told[:left])
        if job is not None and job.size > 1 and left >= LEAST_RANKS and lanes:
            found.lines.append([])
            _add_ranks(found, job, choice, left - 1)
    found.lines += [[] for _ in range(height - len(found.lines) - len(foot))]
    found.lines = [*found.lines[: max(0, height - len(foot))], *foot][:height]
    return found


# header, verdict, keys


def _header(fleet: Overview, job: Job | None, width: int, clock: str, own: str, mode: Span) -> Line:
    seen, nodes = len(fleet.rows) - fleet.silent, len(fleet.rows)
    if job is not None and job.size > 1 and len(fleet.jobs) == 1:
        slurm = job.identity.get("slurm_job", "")
        what = f"{f'job {slurm} ' if slurm else ''}{job.name}  {len(job.members)} of {job.size} ranks · {seen} of {nodes} nodes"
    else:
        down = f" · {counted(fleet.silent, 'node')} silent" if fleet.silent else ""
        what = " · ".join((counted(nodes, "node"), *_gpu_names(fleet.sights), counted(len(fleet.jobs), "job"))) + down
    skews = [abs(sight.skew_s) for sight in fleet.sights if sight.is_seen]
    right: list[Span] = [mode if seen else ("no node answers", "crit")]
    if skews and max(skews) >= 1.0:
        right += [("  ", ""), (f"clocks {max(skews):.1f} s apart", "warn")]
    if own:
        right += [("  ", ""), (own, "dim")]
    right += [("  ", ""), (clock, "title")]
    room = width - sum(cell_width(text) for text, _ in right) - 9
    return [("gputop", "title"), (f"  {fit(what, max(0, room))} ", "dim"), *right]


def _gpu_names(sights: Sequence[Sight]) -> list[str]:
    names = [gpu.name.removeprefix("NVIDIA ") or "GPU" for sight in sights if sight.summary for gpu in sight.summary.gpus]
    return [f"{names.count(name)}× {name}" for name in dict.fromkeys(names)][:3]


def _verdict(fleet: Overview, job: Job | None, choice: Choice, keys: bool) -> list[Line]:
    """Lines about the chosen job: what is wrong, which rank causes it, and the key to press."""
    if job is None:
        silent = [row for row in fleet.rows if row.does == SILENT]
        head = (
            "no training on these nodes" if len(silent) < len(fleet.rows) else f"no node answers yet: {silent[0].says}" if silent else ""
        )
        return [[(f" ● {head}", "dim")], [], *([[]] if keys else [])]
    colour = SEVERITY_COLOURS.get(job.severity, "title")
    mark = "▲" if colour in ("crit", "warn") else "●"
    cause = "" if job.cause == "none" else f" ← {job.cause}"
    about = "~" if job.skewed else ""
    which = f"{job.name}: " if len(fleet.jobs) > 1 else ""
    head = f" {mark} {about}{job.symptom.upper()}{cause}"
    lines: list[Line] = [[(head, colour), (f"   {cut(f'{which}{job.headline}', max(0, choice.width - cell_width(head) - 3))}", "title")]]
    detail = job.detail if job.detail != job.headline else ""
    detail = detail or (f"its ranks do not step alike: {_numbers(job.apart)}" if job.apart else "")
    lines.append([(f"   {cut(detail, max(0, choice.width - 3))}", "")])
    if keys:
        lines.append(_offers(job, fleet.books.ledgers.get(job.key), choice.width))
    return lines


def _offers(job: Job, ledger: Ledger | None, width: int) -> Line:
    late = job.late[0].host if job.late else job.members[0].host
    spans: list[Span] = []
    for key, words, _ in VERDICT_KEYS:
        spans += [("   " if not spans else "  ", ""), (key, "accent"), (f" {words or late}", "")]
    told = f"   lost since you look: {_gpu_time(ledger.gpu_lost_s)}" if ledger is not None and ledger.gpu_lost_s >= 1.0 else ""
    return [*spans, (told, "dim")] if sum(cell_width(text) for text, _ in spans) + cell_width(told) <= width else spans


def _gpu_time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} GPU·h" if seconds >= 3600 else f"{duration(seconds)} of a GPU"


def _numbers(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + ("" if len(ranks) <= 8 else " …")


# the table of nodes


def _add_nodes(found: Page, fleet: Overview, choice: Choice, room: int, *, wide: bool, lanes: bool) -> None:
    if room < 2:
        return
    rows = shown_rows(fleet, choice)
    names = max([len("NODE"), *(cell_width(row.host) for row in fleet.rows)])
    columns = _columns(min(names, 24 if wide else 12), max((len(_gpus(row)) for row in rows), default=0), wide)
    at = total(columns)
    span_s = WIDE_LANE_S if wide else LANE_S
    room_of_lane = choice.width - at if lanes else 0
    last = f"LAST {span_s} s" if wide else f"LAST {span_s // 60} MIN"
    found.lines.append([(fit(titles(columns) + (last if room_of_lane >= 4 else ""), choice.width), "head")])
    found.lane_at, found.lane_s = (at, chosen.cell_s(room_of_lane, span_s)) if room_of_lane >= 4 else (0, 0)
    entries = fold(rows, room - 1)
    for entry in entries[: room - 1]:
        line = len(found.lines)
        if isinstance(entry, Alike):
            found.lines.append([(cut(f"… {len(entry.rows)} more alike: {fold_hosts(entry.hosts)}", choice.width), "dim")])
            continue
        found.hosts[line] = entry.host
        line_of_node = _node_line(entry, columns, max(0, choice.width - at), is_selected=entry.host == choice.selected)
        past = list(fleet.past.get(entry.host, ()))
        lane = chosen.work_lane(past, fleet.seconds, room_of_lane, span_s) if found.lane_at and entry.does != SILENT else []
        found.lines.append([*line_of_node, *lane])
    if not rows and fleet.rows:
        found.lines.append([(f"no node has “{clean(choice.pattern)}”: Esc clears the filter", "dim")])


def _node_line(row: NodeRow, columns: Sequence[TableColumn], more: int, is_selected: bool) -> Line:
    """The row without its lane; of a node that does not answer why, in ``more`` columns besides."""
    mark = "selected" if is_selected else ""
    if row.does == SILENT:
        (name, _), *_ = cells(columns[:1], row)
        return [(name, mark or "warn"), (fit(_silence(row.sight, row.says), total(columns[1:]) + more), "warn")]
    (name, colour), *others = cells(columns, row)
    return [(name, mark or colour), *others]


def _silence(sight: Sight, says: str) -> str:
    since = f"no answer for {duration(sight.since_s)}: " if sight.since_s >= 1.0 and sight.problem else ""
    again = f"; again in {ceil(sight.next_s)} s" if sight.next_s else ""
    return f"{since}{says}{again}"


def _columns(names: int, gpus: int, wide: bool) -> list[TableColumn]:
    near = [
        _left("NODE", names, lambda row: (row.host, "title" if row.does in (LATE, TROUBLED) else "")),
        _left("GPU util" if gpus > 4 or wide else "GPU", max(8 if wide else 4, min(gpus, 16)), lambda row: (_gpus(row), "lane")),
        _left("LOST", 5, lambda row: (f"{_percent(row.lost):>4}", _loss_colour(row.lost))),
        _left("CAUSE", 22 if not wide else 26, _cause),
        TableColumn("STEP/S", 7, lambda row: (_pace(row.worst), "")),
    ]
    if not wide:
        return [*near, _left("WORST RANK", 15, _worst)]
    return [
        *near, _left("WORST RANK", 18, _worst),
        TableColumn("CPU", 5, _host("cpu")), TableColumn("RUNQ", 5, _host("runnable")), _left("PSI io", 6, _host("psi_io")),
        _left("NET", 6, _net), _left("THROTTLE", 8, _host("throttled")), _left("WORKERS", 8, _workers),
    ]  # fmt: skip


def _left(title: str, width: int, cell: Callable[..., Span]) -> TableColumn:
    """A column of ``width`` characters from the left."""
    return TableColumn(title, width + 1, cell, left=True)


def _gpus(row: NodeRow) -> str:
    gpus = row.sight.summary.gpus if row.sight.summary else []
    return "".join("x" if gpu.lost else "?" if gpu.util_pct is None else chosen.bar(gpu.util_pct / 100.0) for gpu in gpus[:16])


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"


def _loss_colour(share: float | None) -> str:
    return "crit" if (share or 0.0) >= QUARTER else "warn" if (share or 0.0) >= LOST else ""


def _cause(row: NodeRow) -> Span:
    mark, colour = _MARKS.get(row.does, ("?", "dim"))
    says = f"{row.says}{' ~' if row.sight.notes else ''}"
    return f"{mark} {says}", colour


def _pace(member: JobRank | None) -> str:
    pace = member.rank.steps_per_s if member else None
    return "–" if pace is None else f"{pace:.2f}" if pace < 1000 else f"{pace:.0f}"


def _worst(row: NodeRow) -> Span:
    member = row.worst
    if member is None:
        return "", ""
    if (requests := row.requests) is not None and requests.slow is not None:
        return f"{member.number} ► {requests.slow.part}", "warn"
    return f"{member.number} {_state(member)}", _state(member)


def _host(name: str) -> Callable[[NodeRow], Span]:
    def cell(row: NodeRow) -> Span:
        value = getattr(row.sight.summary.node, name) if row.sight.summary else None
        return f"{_percent(value):>4}", "warn" if (value or 0.0) >= 0.5 and name != "cpu" else ""

    return cell


def _net(row: NodeRow) -> Span:
    rate = row.sight.summary.node.net_rx_bytes_per_s if row.sight.summary else None
    return ("–" if rate is None else f"{rate / 1e6:.0f} MB" if rate < 1e9 else f"{rate / 1e9:.1f} GB"), ""


def _workers(row: NodeRow) -> Span:
    node = row.sight.summary.node if row.sight.summary else None
    if node is None or not node.workers:
        return "–", "dim"
    return f"{node.starving}/{node.workers}", "starving" if node.starving else ""


# jobs, ranks


def _add_jobs(found: Page, fleet: Overview, choice: Choice, room: int) -> None:
    if room < 2:
        return
    columns = _columns_of_jobs(choice.width)
    found.lines.append([(fit(titles(columns), choice.width), "head")])
    for job in fleet.jobs[: room - 1]:
        found.jobs[len(found.lines)] = job.key
        (name, _), *others = cells(columns, job)
        is_chosen = job.key == (choice.job or fleet.jobs[0].key)
        found.lines.append([(name, "selected" if is_chosen and choice.view == JOBS else "title" if is_chosen else ""), *others])
    left = len(fleet.jobs) - (room - 1)
    if left > 0:
        found.lines[-1] = [(f"… {left + 1} more jobs", "dim")]


def _columns_of_jobs(width: int) -> list[TableColumn]:
    verdict = max(18, min(34, width - 66)) if width >= WIDE else max(10, width - 56)
    near = [
        _left("JOB", 22, lambda job: (" ".join(filter(None, (job.identity.get("slurm_job", ""), job.name))), "")),
        _left("USER", 8, lambda job: (job.identity.get("user", ""), "")),
        TableColumn("RANKS", 8, lambda job: (f"{len(job.members)}/{job.size}" if job.is_partial else str(job.size), "")),
        TableColumn("STEP/S", 7, lambda job: ("–" if job.steps_per_s is None else f"{job.steps_per_s:.2f}", "")),
        TableColumn("LOST", 6, _loss_of_one), _left("VERDICT", verdict, _verdict_of),
    ]  # fmt: skip
    return [*near, _left("WHO", width - total(near) - 1, lambda job: (_ranks_words(job), ""))] if width >= WIDE else near


def _verdict_of(job: Job) -> Span:
    colour = SEVERITY_COLOURS.get(job.severity, "")
    mark = "▲" if colour in ("crit", "warn") else "✓" if job.symptom == "healthy" else "●"
    return f"{mark} {'~' if job.skewed else ''}{job.symptom}{'' if job.cause == 'none' else f' ← {job.cause}'}", colour


def _loss_of_one(one: Job | JobRank) -> Span:
    return _percent(one.lost), _loss_colour(one.lost)


def _ranks_words(job: Job) -> str:
    where = fold_hosts(job.hosts)
    if not job.late:
        return where
    takers = ", ".join(f"{taker.name} {taker.pid}" for taker in job.culprits if taker.pid != job.late[0].rank.pid)
    return f"rank {job.late[0].number} {job.late[0].host}{f' · {takers}' if takers else ''}  of {where}"


def _strip(job: Job | None, width: int, most: int) -> list[Line]:
    """``RANKS   0 ····▒▒▒▒ 8 ▒▒▒▒▒▒▒▒``: the ranks of the job, eight by eight, in at most ``most`` rows, with the late one among them."""
    if job is None or job.size < 2 or most < 1:
        return []
    legend = "█ late ▒ waits · works"
    doing = {member.number: member.does for member in job.members}
    digits, room = len(str(job.size - 1)), width - len("RANKS  ") - len(legend) - 2
    eights = max(1, (room - 2) // (digits + 10))
    late = job.late[0].number // 8 if job.late else 0
    first = max(0, late - eights * most + 2) if late >= eights * most else 0
    lines: list[Line] = []
    for row in range(most):
        begin = 8 * (first + eights * row)
        if begin >= job.size:
            break
        spans: list[Span] = [("RANKS  ", "head") if not row else ("       ", "")]
        for number in range(begin, min(job.size, begin + 8 * eights), 8):
            spans.append((f"{number:>{digits}} ", "dim"))
            spans += [_GLYPHS[doing[at]] if at in doing else (" ", "") for at in range(number, min(number + 8, job.size))]
            spans.append((" ", ""))
        is_cut = row == most - 1 and begin + 8 * eights < job.size
        spans += [("…", "dim")] if is_cut else []
        used = sum(len(text) for text, _ in spans)
        lines.append(merge([*spans, *([] if row else [(" " * max(1, width - used - len(legend) - 1), ""), (legend, "dim")])]))
    return lines


def _add_ranks(found: Page, job: Job | None, choice: Choice, room: int) -> None:
    if job is None or room < 2:
        return
    columns = _columns_of_ranks(max([4, *(min(20, cell_width(member.host)) for member in job.members)]), choice.width)
    found.lines.append([(fit(titles(columns), choice.width), "head")])
    order = sorted(job.members, key=lambda member: (-((LATE, TROUBLED, UNKNOWN, WAITS, WORKS)[::-1].index(member.does)), member.number))
    top = scrolled(choice.top, None, room - 1, len(order))
    for member in order[top : top + room - 1]:
        found.hosts[len(found.lines)] = member.host
        found.lines.append(cells(columns, member))


def _columns_of_ranks(host: int, width: int) -> list[TableColumn]:
    near = [
        TableColumn("RANK", 6, lambda one: (str(one.number), "title" if one.does == LATE else "")),
        _left("NODE", host, lambda one: (one.host, "")),
        _left("GPU", 4, lambda one: (",".join(map(str, one.rank.gpus[:2])), "")),
        _left("DOES", 9, lambda one: (f"{_GLYPHS[one.does][0]} {one.does}", _GLYPHS[one.does][1])),
        _left("STATE", 14, lambda one: (_state(one), _state(one))),
        TableColumn("IDLE", 6, lambda one: (_percent(one.rank.pace.idle if one.rank.pace else None), "")),
        TableColumn("LOST", 6, _loss_of_one), TableColumn("STEP/S", 7, lambda one: (_pace(one), "")),
    ]  # fmt: skip
    return [*near, _left("WHY", max(0, width - total(near) - 1), lambda one: (one.rank.why if one.does != WAITS else "", ""))]


def _state(member: JobRank) -> str:
    """The state in which the main thread was longest."""
    return max(member.rank.states, key=member.rank.states.__getitem__, default="")


# why


def why_lines(fleet: Overview, job: Job | None) -> list[Line]:
    """Lines with all facts about the chosen job, and notes on the numbers of its nodes."""
    out: list[Line] = []
    if job is not None:
        cause = "" if job.cause == "none" else f" ← {job.cause}"
        out.append([(f"{job.name}: {job.symptom}{cause}", SEVERITY_COLOURS.get(job.severity, "title"))])
        out += [[(words, "")] for words in dict.fromkeys((job.headline, job.detail)) if words]
        out.append([(f"{len(job.members)} of {job.size} ranks on {fold_hosts(job.hosts)}", "dim")])
        out += _report_lines(job)
        out += [[(f"no answer from {fold_hosts(job.silent)}: the missing ranks may be there", "warn")]] if job.silent else []
        out += [[("clocks of its nodes are more than 2 s apart (~): which rank was late is uncertain", "warn")]] if job.skewed else []
        out += [[(f"these ranks step at another pace than the others: {_numbers(job.apart)}", "warn")]] if job.apart else []
        out += [[(f"{name}: {value}", "dim")] for name, value in job.identity.items()]
        for member, requests in fleet.servers_of(job)[:MOST_SERVERS]:
            out += [[], [(f"the way of a request on {member.place}", "head")], *message.requests(requests, MOST_WIDE)]
        out += _ledger_lines(fleet.books.ledgers.get(job.key))
        for member in job.late[:8]:
            out += _rank_lines(member)
    for words, hosts in _notes(fleet.sights).items():
        out += [[], [(f"{words}: ", "warn"), (fold_hosts(hosts), "")]]
    incidents = [(one, sight.host) for sight in fleet.sights if sight.summary and sight.is_seen for one in sight.summary.incidents[:3]]
    if incidents:
        out += [[], [("the nodes' last incidents", "head")]]
    for one, host in sorted(incidents, key=lambda pair: -pair[0].start_unix_s)[:16]:
        lasts = "since" if one.end_unix_s is None else "at"
        out.append([(f"  {fit(host, 12)} {lasts:>5} {time_of_day(one.start_unix_s)}  ", "dim"), (one.headline, "")])
    return out if out and out[0] else out[1:]


def _report_lines(job: Job) -> list[Line]:
    if job.report is None:
        return []
    heading, lines = f"NCCL {job.report.version}".strip(), [[(f"  {line}", "dim")] for line in job.report.lines]
    return [[(f"{heading}: {job.report.words}", "warn" if lines else "dim")], *lines]


def _ledger_lines(ledger: Ledger | None) -> list[Line]:
    if ledger is None or ledger.gpu_total_s < 1.0:
        return []
    share = 100 * ledger.gpu_lost_s / ledger.gpu_total_s
    out: list[Line] = [[], [(f"since you look {_gpu_time(ledger.gpu_lost_s)} lost, {share:.0f}% of its GPUs' time", "head")]]
    parts = sorted(ledger.by_cause.items(), key=lambda part: -part[1])
    return [*out, *([(f"  {fit(cause, 26)} {_gpu_time(lost_s)}", "")] for cause, lost_s in parts if lost_s >= 0.5)]


def _rank_lines(member: JobRank) -> list[Line]:
    rank = member.rank
    states = ", ".join(f"{word} {100 * share:.0f}%" for word, share in sorted(rank.states.items(), key=lambda one: -one[1]))
    out: list[Line] = [[], [(f"rank {member.number}, process {rank.pid} on {member.place}", "head")]]
    out += [[(f"  its main thread: {states}", "")]] if states else []
    out += [[(f"  {rank.starving} of its {counted(rank.workers, 'worker')} starving", "")]] if rank.workers else []
    out += [[(f"  {taker.name} ({taker.pid}) took {taker.cpu_s or 0.0:.1f} s of CPU of the last 2.5 s", "")] for taker in rank.culprits]
    return out


def _notes(sights: Sequence[Sight]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for sight in sights:
        for note in sight.notes:
            found.setdefault(note, []).append(sight.host)
    return found
