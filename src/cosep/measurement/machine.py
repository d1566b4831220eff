"""What the figures were taken with: versions, and the hardware in a few words."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path

import torch

import cosep
from cosep.records import Made


def made_now(device: torch.device) -> Made:
    """When and with what a report is made, on the device that computed."""
    return Made(
        time=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        cosep=cosep.__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        hardware=hardware(device),
    )


def hardware(device: torch.device) -> str:
    """The device's name: "NVIDIA A100", or the processor's and how many cores this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = cores()
    return f"{_processor()}, {count} {'core' if count == 1 else 'cores'}" + (", MPS" if device.type == "mps" else "")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    # Only Linux's list has the name that people know; `platform.processor` says "x86_64" there, or nothing.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in names if name and name != "unknown"), "") or platform.processor() or "CPU"
