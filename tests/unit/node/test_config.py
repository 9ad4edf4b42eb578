import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.topic import Fsync
from penstock.node.configuration import config
from penstock.node.configuration.config import (
    Config,
    ConfigInvalid,
    Mode,
    OriginKind,
    config_files,
    describe,
    load,
    parse_listen,
    render_toml,
)
from penstock.node.configuration.settings import MASK, declared
from penstock.telemetry.logs import LogFormat


def write(folder: Path, text: str, name: str = "penstock.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(
    flags: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
    files: list[Path] | None = None,
) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        load(flags or {}, env or {}, files or [])
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_anything_every_value_is_its_default() -> None:
    loaded = load({}, {}, [])
    assert loaded.config == Config()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}
    assert loaded.config.http.listen == "127.0.0.1:9324"
    assert loaded.config.node.data == "./penstock-data"
    assert loaded.config.log.fsync is Fsync.ALWAYS


def test_each_layer_is_stronger_than_the_one_before(tmp_path: Path) -> None:
    system = write(
        tmp_path,
        "[log]\nfsync_interval_ms = 1\nretention_check_ms = 101\nsegment_age_ms_max = 1001\n"
        "tail_bytes_max = 1",
        "system.toml",
    )
    file = write(
        tmp_path, "[log]\nretention_check_ms = 102\nsegment_age_ms_max = 1002\ntail_bytes_max = 2"
    )
    env = {"PENSTOCK_LOG__SEGMENT_AGE_MS_MAX": "1003", "PENSTOCK_LOG__TAIL_BYTES_MAX": "3"}
    loaded = load({"log.tail_bytes_max": 4}, env, [system, file])
    log = loaded.config.log
    assert log.fsync_interval_ms == 1
    assert (log.retention_check_ms, log.segment_age_ms_max, log.tail_bytes_max) == (102, 1_003, 4)
    origins = {key: str(origin) for key, origin in loaded.origins.items()}
    assert origins["log.fsync_interval_ms"] == f"file {system}"
    assert origins["log.retention_check_ms"] == f"file {file}"
    assert origins["log.segment_age_ms_max"] == "env PENSTOCK_LOG__SEGMENT_AGE_MS_MAX"
    assert origins["log.tail_bytes_max"] == "flag log.tail_bytes_max"
    assert origins["log.fsync"] == "default"


LAYERS = st.lists(
    st.dictionaries(
        st.sampled_from(["node.drain_ms", "log.fsync_interval_ms", "queue.partitions"]),
        st.integers(min_value=1, max_value=64),
    ),
    min_size=4,
    max_size=4,
)


@given(layers=LAYERS)
@settings(max_examples=40, deadline=None)
def test_the_strongest_layer_that_has_a_value_wins_and_is_its_origin(
    layers: list[dict[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("layers")
    files = []
    for name, layer in zip(("a.toml", "b.toml"), layers, strict=False):
        text = "".join(f"{key} = {value}\n" for key, value in layer.items())
        files.append(write(folder, text, name))
    env = {
        "PENSTOCK_" + key.upper().replace(".", "__"): str(value) for key, value in layers[2].items()
    }
    flags: dict[str, object] = dict(layers[3])
    loaded = load(flags, env, files)
    for key in ("node.drain_ms", "log.fsync_interval_ms", "queue.partitions"):
        section, name = key.split(".")
        got = getattr(getattr(loaded.config, section), name)
        givers = [number for number, layer in enumerate(layers) if key in layer]
        if not givers:
            assert got == getattr(getattr(Config(), section), name)
            assert loaded.origins[key].kind is OriginKind.DEFAULT
        else:
            assert got == layers[givers[-1]][key]
            kinds = [OriginKind.FILE, OriginKind.FILE, OriginKind.ENV, OriginKind.FLAG]
            assert loaded.origins[key].kind is kinds[givers[-1]]


def test_a_flag_that_was_not_given_does_not_hide_weaker_layers() -> None:
    loaded = load({"node.name": None}, {"PENSTOCK_NODE__NAME": "n1"}, [])
    assert loaded.config.node.name == "n1"


def test_the_environment_is_read_as_the_declared_type() -> None:
    env = {
        "PENSTOCK_LOG__FSYNC": "interval",
        "PENSTOCK_NODE__ACCOUNT": "123456789012",
        "PENSTOCK_NODE__MODE": "prod",
        "PENSTOCK_TELEMETRY__FORMAT": "json",
        "PENSTOCK_CONTEXT": "not a setting",
        "PATH": "/bin",
    }
    loaded = load({}, env, [])
    assert loaded.config.log.fsync is Fsync.INTERVAL
    assert loaded.config.node.account == "123456789012"
    assert loaded.config.node.mode is Mode.PROD
    assert loaded.config.telemetry.format is LogFormat.JSON


def test_a_path_may_be_given_as_a_path(tmp_path: Path) -> None:
    assert load({"node.data": tmp_path}, {}, []).config.node.data == str(tmp_path)


def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = write(tmp_path, "[http]\nlissten = 'x:1'")
    assert refused(files=[file]) == (
        f"http.lissten: no such setting; did you mean http.listen? (file {file})"
    )
    text = refused(env={"PENSTOCK_LOG__FSYNK": "always"})
    assert text == "log.fsynk: no such setting; did you mean log.fsync? (env PENSTOCK_LOG__FSYNK)"
    assert "did you mean node.account?" in refused(flags={"http.account": "1"})
    assert "did you mean" not in refused(flags={"zzz.qqqqq": "1"})


def test_a_value_outside_a_section_is_refused(tmp_path: Path) -> None:
    assert "listen: no such setting" in refused(files=[write(tmp_path, "listen = 'x:1'")])


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("http.connections_max", "abc", "expected int, got 'abc'"),
        ("http.connections_max", "0", "expected int >= 1, got '0'"),
        ("http.connections_max", "1.5", "expected int, got '1.5'"),
        ("log.fsync", "sometimes", "expected one of always, interval, never, got 'sometimes'"),
        ("node.account", "12", "expected twelve digits, got '12'"),
        ("node.region", "Mars 1", "expected 1 to 32 of a-z, 0-9 and -, got 'Mars 1'"),
        ("http.listen", "9324", "expected host:port with a port from 0 to 65535, got '9324'"),
        ("http.listen", "::1:9324", "an IPv6 address must be in brackets"),
        ("http.external_url", "queue.example", "expected http://host:port or https://host"),
        ("node.data", "", "expected the path of a folder"),
        ("queue.recreate_guard_ms", "60001", "60001 ms is too long: at most 1m"),
        ("queue.recreate_guard_ms", "2m", "2m is too long: at most 1m"),
        ("queue.recreate_guard_ms", "1.5ms", "expected a duration such as 15m, got '1.5ms'"),
        ("log.segment_bytes_max", "1kB", "1kB is too small: at least 64KiB"),
        ("log.segment_bytes_max", "64 apples", "expected a size such as 64MiB, got '64 apples'"),
    ],
)
def test_a_wrong_value_is_named_with_its_origin(key: str, value: str, why: str) -> None:
    variable = "PENSTOCK_" + key.upper().replace(".", "__")
    text = refused(env={variable: value})
    assert text.startswith(f"{key}: {why}")
    assert text.endswith(f"(env {variable})")


def test_a_file_is_typed_so_text_is_no_number(tmp_path: Path) -> None:
    file = write(tmp_path, "[queue]\npartitions = '4'")
    assert refused(files=[file]) == f"queue.partitions: expected int, got '4' (file {file})"
    file = write(tmp_path, "[queue]\npartitions = true")
    assert refused(files=[file]).startswith("queue.partitions: expected int, got 'true'")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64MB", 64_000_000), ("64MiB", 67_108_864), ("64m", 67_108_864), ("67108864", 67_108_864)],
)
def test_a_size_may_have_a_unit_in_files_and_in_the_environment(
    tmp_path: Path, text: str, size_bytes: int
) -> None:
    file = write(tmp_path, f"[log]\nsegment_bytes_max = '{text}'")
    assert load({}, {}, [file]).config.log.segment_bytes_max == size_bytes
    env = {"PENSTOCK_LOG__SEGMENT_BYTES_MAX": text}
    assert load({}, env, []).config.log.segment_bytes_max == size_bytes


def test_a_duration_may_have_a_unit_in_files_and_in_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[audit]\nretention_ms = '2d'\n[log]\nretention_check_ms = 5000")
    config = load({}, {"PENSTOCK_QUEUE__RECREATE_GUARD_MS": "1.5s"}, [file]).config
    assert config.audit.retention_ms == 2 * 86_400_000
    assert config.queue.recreate_guard_ms == 1_500
    assert config.log.retention_check_ms == 5_000


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refused(files=[missing]) == f"{missing} cannot be read: No such file or directory"
    assert str(tmp_path) in refused(files=[tmp_path])
    broken = write(tmp_path, "[http\nlisten")
    assert refused(files=[broken]).startswith(f"{broken}: ")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert refused(files=[binary]) == f"{binary} is not UTF-8 text"


def test_the_systems_file_may_be_missing_but_the_one_asked_for_may_not(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert config_files(None, system=missing) == []
    assert config_files(missing, system=missing) == [missing]
    system = write(tmp_path, "")
    assert config_files(missing, system=system) == [system, missing]


def test_a_secret_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    secret = write(tmp_path, "hunter2\n", "token")
    loaded = load({}, {"PENSTOCK_ADMIN__TOKEN_FILE": str(secret)}, [])
    assert loaded.config.admin.token == "hunter2"
    row = next(row for row in describe(loaded) if row.key == "admin.token")
    assert row.value == MASK
    assert row.origin == "env PENSTOCK_ADMIN__TOKEN_FILE"
    assert not any("hunter2" in str(row) for row in describe(loaded))


def test_a_stronger_secret_beats_a_weaker_secret_file(tmp_path: Path) -> None:
    secret = write(tmp_path, "weak", "token")
    file = write(tmp_path, f"[admin]\ntoken_file = '{secret}'")
    assert load({"admin.token": "strong"}, {}, [file]).config.admin.token == "strong"


def test_secret_mistakes_do_not_show_the_secret(tmp_path: Path) -> None:
    assert "hunter" not in refused(flags={"admin.token": "hunter" * 1_000})
    missing = tmp_path / "missing"
    text = refused(env={"PENSTOCK_ADMIN__TOKEN_FILE": str(missing)})
    assert text == (
        f"admin.token_file: {missing} cannot be read: No such file or directory"
        " (env PENSTOCK_ADMIN__TOKEN_FILE)"
    )
    both = write(tmp_path, "x", "token")
    file = write(tmp_path, f"[admin]\ntoken = 'hunter2'\ntoken_file = '{both}'")
    assert "are both set" in refused(files=[file])
    file = write(tmp_path, "[admin]\ntoken_file = 7")
    assert "expected a path" in refused(files=[file])


def test_only_secrets_have_a_file_form() -> None:
    assert "no such setting" in refused(flags={"http.listen_file": "/x"})


def test_an_unset_secret_is_shown_as_unset() -> None:
    row = next(row for row in describe(load({}, {}, [])) if row.key == "admin.token")
    assert (row.value, row.origin) == ("", "default")


def test_description_has_every_setting_once_in_order() -> None:
    loaded = load({"log.fsync": "never"}, {}, [])
    rows = describe(loaded)
    assert [row.key for row in rows] == list(declared(Config))
    assert ("log.fsync", "never", "flag log.fsync") in [
        (row.key, row.value, row.origin) for row in rows
    ]


def test_the_generated_file_is_valid_and_changes_nothing(tmp_path: Path) -> None:
    text = render_toml()
    assert load({}, {}, [write(tmp_path, text)]).config == Config()
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_generated_file_uncommented_says_the_defaults(tmp_path: Path) -> None:
    forms = {f"#{one.name}_file" for one in declared(Config).values() if one.is_secret}
    lines = [
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in render_toml().splitlines()
        if line.partition(" = ")[0] not in forms
    ]
    text = "\n".join(lines)
    values: dict[str, Any] = tomllib.loads(text)
    assert {f"{s}.{k}" for s, section in values.items() for k in section} == set(declared(Config))
    loaded = load({}, {}, [write(tmp_path, text)])
    assert loaded.config == Config()
    assert all(origin.kind is OriginKind.FILE for origin in loaded.origins.values())


def test_every_default_passes_its_own_check() -> None:
    for setting in declared(Config).values():
        assert msgspec.convert(setting.default, setting.type) == setting.default
        assert setting.check is None or setting.check(setting.default) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9324", ("127.0.0.1", 9_324)),
        ("[::1]:0", ("::1", 0)),
        ("queue.example:65535", ("queue.example", 65_535)),
    ],
)
def test_listen_addresses_are_taken_apart(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", ":", ":80", "a:b", "a:-1", "a:65536", "a b:1", "a:١"])
def test_other_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_listen(text)


def test_the_public_names_exist() -> None:
    assert all(hasattr(config, name) for name in config.__all__)
