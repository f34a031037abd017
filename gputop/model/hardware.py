"""The host's slow facts in words, for the lanes of the host, the Enter view and `gputop doctor`."""

from __future__ import annotations

from gputop.model.frame import FileSystem, Hardware, Nic
from gputop.system.text import counted

MOST_SHOWN = 4  # interfaces, and file systems, per line (guess)


def cpu_words(hardware: Hardware) -> str:
    """``16 cores, 32 threads, 2.4 of 3.7 GHz, 71 °C of 100 °C``, without unknown parts."""
    cores = "" if hardware.cores is None else counted(hardware.cores, "core")
    threads = "" if hardware.threads is None else counted(hardware.threads, "thread")
    most = "" if hardware.cpu_max_mhz is None else f" of {hardware.cpu_max_mhz / 1000:.1f}"
    clock = "" if hardware.cpu_mhz is None else f"{hardware.cpu_mhz / 1000:.1f}{most} GHz"
    limit = "" if hardware.cpu_temp_limit_c is None else f" of {hardware.cpu_temp_limit_c:.0f} °C"
    heat = "" if hardware.cpu_temp_c is None else f"{hardware.cpu_temp_c:.0f} °C{limit}"
    return ", ".join(filter(None, (cores, threads, clock, heat)))


def nic_words(hardware: Hardware) -> str:
    """``eth0 25 Gbit/s, ib0 400 Gbit/s, 2 are down``; the name alone if the speed is unknown."""
    nics = hardware.nics or []
    up = [nic for nic in nics if nic.is_up]
    down = len(nics) - len(up)
    more = [f"{len(up) - MOST_SHOWN} more are up"] * (len(up) > MOST_SHOWN) + [f"{down} {'is' if down == 1 else 'are'} down"] * bool(down)
    return ", ".join([*map(_nic, up[:MOST_SHOWN]), *more])


def _nic(nic: Nic) -> str:
    return nic.name if nic.speed_mbit is None else f"{nic.name} {speed_words(nic.speed_mbit)}"


def speed_words(mbit: int) -> str:
    """``25 Gbit/s``, ``100 Mbit/s``."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def file_system_words(hardware: Hardware) -> str:
    """``/ ext4 on /dev/sda2, 83 of 270 GB free; /data nfs4 on filer:/export``."""
    listed = hardware.file_systems or []
    more = [f"{len(listed) - MOST_SHOWN} more"] * (len(listed) > MOST_SHOWN)
    return "; ".join([*map(_file_system, listed[:MOST_SHOWN]), *more])


def _file_system(one: FileSystem) -> str:
    where = f"{one.path} {one.kind} on {one.device}"
    if one.free_bytes is None or one.total_bytes is None:
        return where
    return f"{where}, {one.free_bytes / 1e9:.0f} of {one.total_bytes / 1e9:.0f} GB free"


LANES = {"cpu.busy_pct": cpu_words, "disk.read_mb_per_s": file_system_words, "net.rx_mb_per_s": nic_words}
"""Series of the host -> the facts shown beside it."""
