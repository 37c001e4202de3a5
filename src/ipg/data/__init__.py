"""Labelled images with groups: one module a data set, all read into `ImageTable`."""
