"""Agents: environments in which a model calls tools, of Python, of MCP servers and of others.

tools: `Tools`, the environment: functions and MCP servers of a configuration, one toolbox for all
    episodes.
conversation, limits: `converse`: draw, call, answer, until a completion has no call or a limit is
    reached.
toolbox, ordered: `Toolbox`: makes the calls of a turn at once, each within its deadline; what goes
    wrong becomes a message. `OrderedToolbox`: one after the other, for tools with a state.
repository, harbor: `Repository`, the environment of files, with bash and an editor in a shell of
    each episode's own; prompts of tasks in Harbor's format.
python: a tool that runs Python in the sandbox, with names that last for an episode.
tool, threads: `Tool`: a function with its schema and the types of its arguments; a daemon thread
    for each call of a sync function.
servers, results: a connection to an MCP server, held open by one task of the event loop of the
    episodes; what its tools answer, as the content of a message.

A tool's thread is a daemon and belongs to no executor, since Python joins the threads of executors
when a program ends: a function that hangs would hold it up. The scopes of an MCP client must be
left by the task that entered them, and episodes are tasks of their own: so a task enters them,
waits for `close`, and leaves them.
"""
