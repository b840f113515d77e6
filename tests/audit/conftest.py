from tests.training.conftest import compiled_once, people_store, without_pictures  # noqa: F401
