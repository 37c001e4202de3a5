"""The tables as data: a study is a TOML file of trials, its results are rows, its tables are made from the rows."""
