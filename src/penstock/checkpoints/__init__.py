"""Where snapshots live.

In the order they are needed: `storage` (a folder in which a name can be created once), `envelope` (records as
checked bytes), `manifest` (what a checkpoint says), `log` (the published ones, in order), `repository` (which
files are kept; savepoints), `restore` (what to start from, decided without IO), `saved` (the state of one
step, for another pipeline), `lock` (one coordinator at a
time, as a courtesy; the log is what makes it safe).
"""
