"""Found first on PYTHONPATH: starts preassert's hook, then runs the sitecustomize that this one hides.

Any Python may meet this file (children of the script can be other interpreters), so its syntax is the oldest there is.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
# The folder was on the path only to be found; the script sees the path it would have had.
sys.path[:] = [entry for entry in sys.path if entry != _here]


def _start_hook():
    import importlib.util

    # By file: the package may be invisible to this interpreter.
    file = os.path.join(os.path.dirname(_here), "hook.py")
    spec = importlib.util.spec_from_file_location("preassert._bootstrap.hook", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.start()


def _run_hidden():
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if sys.version_info >= (3, 10):  # noqa: UP036 - see above
    try:
        _start_hook()
    except Exception as error:  # the script runs in any case
        sys.stderr.write("preassert: this process is not guarded: %s: %s\n" % (type(error).__name__, error))  # noqa: UP031
if sys.version_info >= (3, 4):  # noqa: UP036
    _run_hidden()
