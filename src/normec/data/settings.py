"""The `[data]` section: where the samples come from, and how they are dealt to clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from normec.data.files import DELIMITED, TABLES, suffix
from normec.data.pixels import ImageSettings
from normec.errors import BadInput
from normec.imports import looks_like_import_path
from normec.settings import Count, Fraction, Positive, Text, Texts, Whole

DEFAULT_CLIENTS = 100
DEFAULT_WINDOW = 40
"""Characters from which the next one is predicted."""
NEEDS = {"concentration": "dirichlet", "classes_per_client": "shards", "size_exponent": "power-law"}
"""Settings that act with one partition only."""
Names = Annotated[tuple[Text, ...], Field(strict=False, min_length=1, description="a column's name, or a list of such")]
IMAGES = ("pool", "resize", "channels", "pixel_max")
"""Settings that act with images only."""


class Data(ImageSettings):
    """Where the samples come from, and how they are dealt to clients: the `[data]` section.

    min_size: training samples that every client has at least. path: the folder of CIFAR-10. window: of a text, the number of
    characters from which the next one is predicted. pool: of images, the side of the squares of pixels that are averaged.
    resize, channels, pixel_max: of images, as in `ImageSettings`.
    drop_columns: of a table, those that are not features. time_column: of a table, what a split by time goes by; it is not a feature.
    separator, decimal, encoding: how a CSV is written; by default its first row tells the separator. test_source: a test set of its
    own, read as the source is. size_limit: bytes of memory that the source may take once it is read;
    "auto" for half of what the machine has free.
    """

    source: Text = "digits"
    path: Text | None = None
    window: Count | None = None
    pool: Count | None = None
    clients: Count | None = None
    partition: Literal["iid", "dirichlet", "shards", "power-law", "column"] = "iid"
    concentration: Positive | None = None
    classes_per_client: Count | None = None
    size_exponent: Positive | None = None
    min_size: Whole = 0
    client_column: Text = "client"
    label_column: Text | Names = "label"
    drop_columns: Texts = ()
    time_column: Text | None = None
    separator: Text | None = None
    decimal: Literal[".", ","] | None = None
    encoding: Text | None = None
    test_source: Text | None = None
    test_fraction: Fraction = 0.2
    size_limit: Literal["auto"] | Count = "auto"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The columns that hold the targets."""
        return (self.label_column,) if isinstance(self.label_column, str) else self.label_column

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**values)
        for key, kind in NEEDS.items():
            if getattr(self, key) is not None and self.partition != kind:
                raise BadInput(key, f"acts only with partition={kind!r}", value=getattr(self, key), remedy="Remove it, or change partition")
        self._check_what_acts()
        self._check_roles()
        if self.separator is not None and self.separator != "tab" and (len(self.separator.encode()) != 1 or self.separator in '"\r\n'):
            raise BadInput("separator", "is not one character that may separate", value=self.separator, remedy="Give one such as ; or tab")
        if looks_like_import_path(self.source) and self.clients is not None:
            raise BadInput("clients", f": {self.source} makes its own clients", value=self.clients, remedy="Remove clients")
        if self.partition == "column" and self.clients is not None:
            raise BadInput("clients", ": partition='column' takes the clients from the column", value=self.clients, remedy="Remove clients")

    def _check_what_acts(self) -> None:
        """That no setting is given that the source has no use for."""
        table = self._may_be(TABLES)
        csv = self._may_be(DELIMITED)
        for key, applies, sources in (
            ("path", self.source == "cifar10", "'cifar10'"),
            ("test_source", self.source != "cifar10" and not looks_like_import_path(self.source), "a file or a folder"),
            ("window", self.source.lower().endswith(".txt"), "a .txt file"),
            ("label_column", table or isinstance(self.label_column, str), "a table, .csv or .parquet, for several columns"),
            ("drop_columns", table, "a table, .csv or .parquet"),
            ("time_column", table, "a table, .csv or .parquet"),
            ("separator", csv, "a .csv file"),
            ("decimal", csv, "a .csv file"),
            ("encoding", csv, "a .csv file"),
        ):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and not applies:
                shown = list(value) if isinstance(value, tuple) else value
                raise BadInput(key, f"acts only with source={sources}", value=shown, remedy="Remove it, or change source")

    def _check_roles(self) -> None:
        """That no column has two roles."""
        if len(set(self.label_names)) != len(self.label_names):
            raise BadInput("label_column", "names a column twice", value=list(self.label_names), remedy="Name each once")
        for key, names in (("label_column", self.label_names), ("client_column", (self.client_column,))):
            for name in names:
                if name in self.drop_columns:
                    raise BadInput("drop_columns", f"holds {name!r}, which is the {key}", remedy="Remove it there; it is not a feature")
        if self.partition == "column" and self.client_column in self.label_names:
            raise BadInput("client_column", "is the label column too", value=self.client_column, remedy="Name another column")
        if self.time_column is not None and self.test_source is not None:
            raise BadInput("time_column", "acts only without test_source", value=self.time_column, remedy="Remove one of the two")
        if self.time_column in (*self.label_names, self.client_column, *self.drop_columns):
            raise BadInput(
                "time_column", "has another role already", value=self.time_column, remedy="Name another column, or remove that role"
            )

    def _may_be(self, suffixes: tuple[str, ...]) -> bool:
        """Whether the source may hold files with one of these suffixes: one, a pattern, or a folder."""
        if self.source in ("digits", "cifar10") or looks_like_import_path(self.source):
            return False
        end = suffix(Path(self.source))
        return end in suffixes or end not in (*TABLES, ".npz", ".txt", ".json")

    def resolved(self) -> Data:
        """The same section with every default written out and the path of a file made absolute."""
        own = looks_like_import_path(self.source)
        source = self.source if own or self.source in ("digits", "cifar10") else str(Path(self.source).absolute())
        clients = self.clients if own or self.partition == "column" else self.clients or DEFAULT_CLIENTS
        path = None if self.path is None else str(Path(self.path).absolute())
        test = None if self.test_source is None else str(Path(self.test_source).absolute())
        return self.changed(source=source, clients=clients, path=path, test_source=test)
