"""The wait-for graph: waits between processes, the leaves of a walk along them, and the leaves' cost."""
