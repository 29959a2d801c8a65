"""What a process started by ``preassert run``, and every Python process below it, loads at start-up.

``path/`` goes in front of ``PYTHONPATH``; the ``sitecustomize`` in it loads :mod:`preassert._bootstrap.hook` and hands on to the
user's own ``sitecustomize``. Nothing here imports torch; the guard is installed when the script imports it.
"""
