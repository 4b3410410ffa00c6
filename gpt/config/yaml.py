"""The YAML dialect of configs: the scalars of YAML 1.2, safe, without aliases or duplicate keys.

Only people's own files are YAML (a checkpoint's config is JSON), but one may be a stranger's: it
can neither execute anything nor take more than moments to read. The only module that imports yaml.
"""

import json
import re
import reprlib
from pathlib import Path
from typing import Any, ClassVar

import yaml

from gpt.config.schema import SETTINGS, Config, values
from gpt.errors import ConfigError, shown
from gpt.files import read_bounded

LONGEST_FILE = 2**20  # bytes
DEEPEST = 20  # levels of keys; a hundred thousand take minutes to read


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the scalars of YAML 1.2 and without duplicate keys.

    YAML 1.1, which PyYAML speaks, reads `3e-4` as a string, `no` as false, `010` as 8,
    `1:30` as 90 and `2026-01-01` as a date; none of these is what its writer meant.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "expected a plain word as a key", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key!r}", key_node.start_mark
                )
            seen.add(key)
        return dict(super().construct_mapping(node, deep))


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), None)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def parse(text: str, origin: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ConfigError: the text is not valid YAML; the message begins with `origin`.
    """
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ConfigError(f"{origin}: expected at most {DEEPEST} levels, got more")
            refused = ""
            if isinstance(event, yaml.AliasEvent):  # a few lines of them can stand for gigabytes
                refused = "aliases (*name) are not read here"
            elif getattr(event, "tag", None) is not None:  # `!!int "010"` is 8 to PyYAML
                refused = "explicit tags (!!int, !name) are not read here; leave them out"
            if refused:
                raise yaml.MarkedYAMLError(
                    problem=refused,
                    problem_mark=event.start_mark,  # type: ignore[arg-type]
                )
        return yaml.load(text, Loader=_Loader)
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{origin}{place}: not valid YAML: {error.problem}") from None
    except Exception as error:  # control characters, numbers of thousands of digits
        reason = shown(" ".join(str(error).split()) or type(error).__name__, 150)
        raise ConfigError(f"{origin}: not valid YAML: {reason}") from None


def has_comment(text: str) -> bool:
    """Return whether the YAML `text` has a comment: its value is not all that is written."""
    end = 0
    for token in yaml.scan(text, Loader=_Loader):
        if "#" in text[end : token.start_mark.index]:
            return True
        end = token.end_mark.index
    return "#" in text[end:]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a config file. Raises ConfigError if it cannot be read or is none."""
    try:
        content = read_bounded(path, LONGEST_FILE)
        if len(content) > LONGEST_FILE:
            raise ConfigError(f"{path}: expected a config of at most 1 MiB, got a larger file")
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, got {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from None
    tree = parse(text, str(path))
    if tree is None:  # an empty file, or nothing but comments
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: expected keys such as `model:` and `train:`, got {reprlib.repr(tree)}"
        )
    return tree


def as_flow(value: Any) -> str:
    """A value as `--set` takes it: on one line, in ASCII.

    That is JSON, but for what UTF-16 has no single unit for: YAML refuses JSON's pairs.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08X}", text)


def to_yaml(config: Config) -> str:
    """The resolved config as a YAML file that `load_config` reads back, each key explained."""
    lines, section, group = [], "", ""
    for key, value in values(config).items():
        setting = SETTINGS[key]
        *parents, name = key.split(".")
        indent = "  " * len(parents)
        if parents and parents[0] != section:
            section = parents[0]
            lines.append(f"\n{section}:")
        _, divided, heading = setting.group.partition(": ")
        if divided and setting.group != group:
            lines.append(f"{indent}# {heading}")
        group = setting.group
        lines.append(f"{indent}{name}: {_value(value)}".ljust(32) + f"  # {setting.description}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return `value` as YAML on one line, with escapes for characters that do not show."""
    value = _in_lists(value)
    text = "null" if value is None else _dump(value).removesuffix("\n").removesuffix("\n...")
    # "1e5" is a number without quotes
    return text if text.isprintable() and parse(text, "") == value else as_flow(value)


def _in_lists(value: Any) -> Any:
    return [_in_lists(part) for part in value] if isinstance(value, tuple) else value


def _dump(value: Any) -> str:
    dumped: str = yaml.safe_dump(value, width=10**6, allow_unicode=True, default_flow_style=True)
    return dumped
