"""Sandbox: runs what a model wrote, in processes that can reach nothing.

A package without plugins, for rewards and environments. Python runs in a process of its own,
forked from a small interpreter that has nothing of the run in its memory, under a list of system
calls (`groupwise_sandbox.system_calls`): none of them names a path, a process or a socket. Where it
needs files, it has a folder of its own, in namespaces or under Landlock
(`groupwise_sandbox.folder`). What it may use of time, memory and output is limited (`Limits`).
Inputs go in and plain data comes out; what an answer is compared with is never in the process that
gives it.

Other programs, such as compilers and what they make, run inside bubblewrap where it works
(`groupwise_sandbox.commands`, `.programs`): in namespaces, with a list of calls that is longer. A
shell (`groupwise_sandbox.shell`) is a folder in memory, and such commands in it.

Start with `groupwise_sandbox.sandbox.Sandbox`. This module imports nothing, since the server's
interpreter has no other package.

Not promised: that the kernel has no fault, and that a program cannot measure the machine.
"""
