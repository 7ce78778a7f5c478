"""Container runtime: shim, isolation levels, rootfs, mounts, ids, logs."""
