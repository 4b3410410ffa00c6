"""Read and write configs as YAML. The only module that imports yaml.

A file may come from a stranger: it cannot execute anything, and reading it takes at most moments.
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

MAX_FILE_BYTES = 2**20  # size of a config file
MAX_LEVELS = 20  # levels of keys; a hundred thousand would take minutes to read


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the scalars of YAML 1.2, without duplicate keys.

    PyYAML implements YAML 1.1, which reads `3e-4` as a string, `no` as false, `010` as 8, `1:30` as
    90 and `2026-01-01` as a date. Nobody means that in a config.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            problem = f"duplicate key {key.value!r}"
            if not isinstance(key, yaml.ScalarNode):
                problem = "expected a plain word as a key"
            elif key.value not in seen:
                seen.add(key.value)
                continue
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
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
            if depth > MAX_LEVELS:
                raise ConfigError(f"{origin}: expected at most {MAX_LEVELS} levels, got more")
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
    """Return whether the YAML `text` has a comment, which `parse` drops."""
    end = 0
    for token in yaml.scan(text, Loader=_Loader):
        if "#" in text[end : token.start_mark.index]:
            return True
        end = token.end_mark.index
    return "#" in text[end:]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a config file; raise ConfigError if it cannot be read or is none."""
    try:
        content = read_bounded(path, MAX_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
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
    """Return `value` as it can be typed after `--set`: on one line, in ASCII.

    This is JSON, except that JSON escapes some characters as two units, which YAML refuses.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08X}", text)


def to_yaml(config: Config) -> str:
    """Return the resolved config as a YAML file with a comment for each key."""
    lines, section, group = [], "", ""
    for key, value in values(config).items():
        setting, (parent, _, name) = SETTINGS[key], key.rpartition(".")
        indent = "  " if parent else ""
        if parent != section:
            section = parent
            lines.append(f"\n{section}:")
        if setting.group != group and ": " in setting.group:  # such as `model: size`
            lines.append(f"{indent}# {setting.group.partition(': ')[2]}")
        group = setting.group
        lines.append(f"{indent}{name}: {_value(value)}".ljust(32) + f"  # {setting.description}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return `value` as YAML on one line, with escapes for characters that do not show."""
    value = json.loads(json.dumps(value))  # tuples become lists
    text: str = yaml.safe_dump(value, width=10**6, allow_unicode=True, default_flow_style=True)
    text = "null" if value is None else text.removesuffix("\n").removesuffix("\n...")
    # PyYAML writes the text "1e5" without quotes, which would be read as a number
    return text if text.isprintable() and parse(text, "") == value else as_flow(value)
