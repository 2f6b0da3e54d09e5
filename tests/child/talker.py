"""A child for the tests: does what it is told, in every way a child can go wrong. Run with ``-m talker``."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from memviz.child.process import Channel


def main() -> None:
    channel = Channel()
    while True:
        order = channel.receive()
        match order["do"]:
            case "echo":
                channel.send({"echo": order["value"]})
            case "describe":
                channel.send(
                    {
                        "path": sys.path,
                        "cwd": os.getcwd(),
                        "pid": os.getpid(),
                        "extra": os.environ.get("MEMVIZ_TEST_EXTRA"),
                        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
                    }
                )
            case "chatter":
                sys.stderr.write("e" * order["size"])
                print("o" * order["size"] + "end of stdout", flush=True)
                sys.stderr.write("e" * 100 + "end of stderr")
                channel.send({"done": True})
            case "garbage":
                channel._connection.send_bytes(b"Traceback: no JSON")
            case "exit":
                os._exit(order["code"])
            case "abort":
                os.abort()
            case "sleep":
                channel.send({"asleep": True})
                time.sleep(600)
            case "send from threads":
                threads = [
                    threading.Thread(target=channel.send, args=({"n": n, "pad": "x" * 70_000},)) for n in range(8)
                ]
                for thread in threads:
                    thread.start()
            case "grandchild":
                command = [sys.executable, "-c", "import time; time.sleep(600)"]
                grandchild = subprocess.Popen(command, start_new_session=order["apart"])
                channel.send({"pid": grandchild.pid})


if __name__ == "__main__":
    main()
