from tests.training.conftest import compiled_once, people_store, without_pictures

__all__ = ["compiled_once", "people_store", "without_pictures"]
