"""A stand-in for `vllm serve`: python stand_in.py MODEL FOLDER --port PORT.

In the folder a file named by the port has the server's process in its first line, then the paths of
the requests.
"""

import importlib.util
import os
import sys
import threading
from pathlib import Path

_, model, folder, _, port = sys.argv
engine = Path(__file__).parents[1] / "llm" / "vllm" / "engine.py"
spec = importlib.util.spec_from_file_location("engine", engine)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

log = (Path(folder) / port).open("w", buffering=1)
log.write(f"{os.getpid()}\n")


class Logging(module.Engine):
    def answer(self, request, body):
        log.write(f"{request.path}\n")
        super().answer(request, body)


Logging(model, host="", port=int(port))
threading.Event().wait()
