"""What the shell, the C library or the operating system say of a process that ended by itself."""

from halfwise.tensorrt.log.messages.message import ISSUES, Message

CRASH, KILLED = "crash", "killed"
STOPPED = (CRASH, KILLED)
"""Kinds after which nothing more comes of a build: where it was is told by the lines before."""
_SHELL = (
    r"(?:^|[:\uff1a]\s*\d+\s+|^\[\d+\]\s+\d+\s+|^zsh: |^make\S*: \*{3} \[.*\] "
    r"|^Fatal Python error: )"
)
"""What stands before the name of a signal: nothing, the number of a process, or who tells it."""
_FAULTS = (
    *("[Ss]egmentation fault", "Speicherzugriffsfehler", "Adressierungsfehler", "段错误"),
    *("Erreur de segmentation", "Violación de segmento", "Errore di segmentazione"),
    *("Fal(?:h|t)a de segmentação", "Ошибка сегмент(?:ации|ирования)", "程式記憶體區段錯誤"),
    *("セグメンテーション(?:フォルト|違反)", "세그(?:멘|먼)테이션 오류"),
)
"""Names of the signal in the translations of glibc and bash; so are those of the others."""
_KILLED = (
    *("[Kk]illed", "Getötet", "Tué", "Processus arrêté", "Terminado \\(killed\\)", "Ucciso"),
    *("Morto", "Уби(?:то|т)", "強制終了", "已杀死", "強制結束", "죽었음"),
)
_DUMPED = (
    *("core dumped", "Speicherabzug geschrieben", "`core' generado", "core dump creato"),
    *("核心已转储", "核心已傾印", "コアダンプ", "образ памяти сброшен на диск"),
)
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
        rf"{_SHELL}(?:{'|'.join(_FAULTS)})|\bSIGSEGV\b|(?i:signal):? \(?11\b|出现段错误"
        r"|exit code (?:139|-11|-1073741819|0x[Cc]0000005)\b",
        "The process crashed: it touched memory that is not its own (segmentation fault).",
        _TRY,
        f"{ISSUES}4111",
    ),
    Message(
        CRASH,
        "error",
        rf"{_SHELL}(?:Aborted\b(?!:)|abort\b)|\bSIGABRT\b|^terminate called|^free\(\): "
        r"|^malloc\w*\(\): |^double free or corruption",
        "The process crashed: it gave up by itself (abort).",
        _TRY,
        f"{ISSUES}3162",
    ),
    Message(
        CRASH,
        "error",
        rf"{_SHELL}(?P<how>Floating point exception|Illegal instruction|Bus error)\b"
        rf"|^(?P<other>[\w/ ]+) [(\uff08](?:{'|'.join(_DUMPED)})[)\uff09]",
        "The process crashed ({how}{other}).",
        _TRY,
        f"{ISSUES}3162",
    ),
    Message(
        KILLED,
        "error",
        rf"{_SHELL}(?:{'|'.join(_KILLED)})(?!\w)|Out of memory: Killed process|oom-kill:"
        r"|\bSIGKILL\b|exit code 137\b",
        "Something ended the process from outside, mostly the operating system for want of memory.",
        "Look into `dmesg`; free main memory (on a Jetson the GPU's too), add swap, allow a "
        "smaller workspace (--memPoolSize=workspace:MiB), or raise the container's limit.",
        "https://github.com/wang-xinyu/tensorrtx/issues/1145",
    ),
)
