"""How a cluster scales: a model whose terms are measured with the real code, ``docs/scaling.md``.

``model.py`` has the formulas, ``population.py`` makes clusters of any size, ``memory_store.py`` is
a store that counts; ``measures.py``, ``store_measures.py`` and ``node_measures.py`` measure what
the formulas need, and ``__main__.py`` compares both."""
