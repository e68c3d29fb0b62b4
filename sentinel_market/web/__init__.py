"""The page and the report: data of the coordinator and of a run, drawn without anything from outside."""
