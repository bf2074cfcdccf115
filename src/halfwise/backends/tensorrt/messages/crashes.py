"""What the shell, the C library or the operating system say of a process that ended by itself."""

from halfwise.backends.tensorrt.messages.message import ISSUES, Message

CRASH, KILLED = "crash", "killed"
STOPPED = (CRASH, KILLED)
"""Kinds after which nothing more comes of a build: where it was is told by the lines before."""
_SHELL = r"(?:^|line \d+:\s+\d+\s+)"
_TRY = (
    "A fault of TensorRT or of a plugin: no number in a model may do this. Build without FP16: "
    "where that works, keep the block that it stopped at in FP32, rewrite it (`halfwise "
    "modernize`), or try another --builderOptimizationLevel or version. `halfwise fix --target "
    "tensorrt` builds in a process of its own and goes on after a crash."
)

CRASHES = (
    Message(
        CRASH,
        "error",
        rf"{_SHELL}Segmentation fault\b|\bSIGSEGV\b|Signal:? \(?11\b|出现段错误|^段错误",
        "The process crashed: it touched memory that is not its own (segmentation fault).",
        _TRY,
        f"{ISSUES}4111",
    ),
    Message(
        CRASH,
        "error",
        rf"{_SHELL}Aborted\b|\bSIGABRT\b|^terminate called|^free\(\): |^malloc\w*\(\): "
        r"|^double free or corruption",
        "The process crashed: it gave up by itself (abort).",
        _TRY,
        f"{ISSUES}3162",
    ),
    Message(
        CRASH,
        "error",
        rf"{_SHELL}(?P<how>Floating point exception|Illegal instruction|Bus error)\b"
        r"|^(?P<other>[\w/ ]+) \(core dumped\)",
        "The process crashed ({how}{other}).",
        _TRY,
        f"{ISSUES}3162",
    ),
    Message(
        KILLED,
        "error",
        rf"{_SHELL}Killed\b|Out of memory: Killed process|oom-kill:|\bSIGKILL\b|exit code 137\b",
        "Something ended the process from outside, mostly the operating system for want of memory.",
        "Look into `dmesg`; free main memory (on a Jetson the GPU's too), add swap, allow a "
        "smaller workspace (--memPoolSize=workspace:MiB), or raise the container's limit.",
        "https://github.com/wang-xinyu/tensorrtx/issues/1145",
    ),
)
