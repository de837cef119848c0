-- No query reads it any more.
DROP INDEX runs_open_children;
