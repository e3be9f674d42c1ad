"""``python -m adapter.workers``: a worker process, for the supervisor to start."""

import os

# Read by gRPC when it is imported, which the worker does (see ``adapter.cli``).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from adapter.workers.worker import main

if __name__ == "__main__":
    main()
