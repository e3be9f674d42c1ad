"""What every Python model of this repository shares; copied beside ``model.py`` into the running model repository.

It runs inside Triton's Python backend and imports nothing of ``engine`` or ``adapter``: the contract comes from
``contract.json``. A model is a ``front.Backend``: the front decodes and validates requests, answers ``stop``, and hands
over ``Generation`` objects, through which the backend sends tokens and exactly one end. A request's way through the
files:

    triton.TritonReader -> requests.decode -> front.Front -> [the model] -> generation -> replies -> triton.TritonSender
                                                  |                            |
                                            live (cancel)      coalesce, stop_words, engine_log

Inside a model folder these modules are imported as ``from common.requests import ...`` and the model's own as
``from .script import ...``. ``model.py`` first puts its folder at the head of ``sys.path``, so that no installed
``common`` gets in the way; so no module of a model may have the name of a library's. Only ``triton`` touches
``triton_python_backend_utils``; everything else can be tested without a server.
"""
