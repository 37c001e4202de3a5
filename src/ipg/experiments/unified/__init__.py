"""One protocol for all methods: as many configurations each, the best chosen without test images, then the seeds."""
