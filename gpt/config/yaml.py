"""Read and write configs as YAML. No other module imports yaml.

A config file may come from an untrusted source. Parsing it executes no code and takes little time.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

from gpt.config.schema import SETTINGS, Config, values
from gpt.errors import ConfigError, shown

MAX_LEVELS = 20  # largest depth of nested keys; parsing a hundred thousand levels takes minutes


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML loader that parses scalars nearly as YAML 1.2, and refuses duplicate keys.

    PyYAML implements YAML 1.1, which reads `3e-4` as a string, `no` as false, `010` as 8, `1:30` as
    90 and `2026-01-01` as a date. Users do not expect that in a config.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                problem = f"expected distinct words as keys, got {shown(str(key.value))!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


for tag, pattern, first in (
    ("null", r"~|null|Null|NULL|", None),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"^({pattern})$"), first and [*first]
    )


def parse(text: str, origin: str) -> Any:
    """Parse a YAML text; if invalid, raise ConfigError with a message that begins with `origin`."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # refuse aliases, which can expand to gigabytes, and tags: `!!int "010"` would mean 8
            is_special = isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None)
            if is_special or depth > MAX_LEVELS:
                problem = f"no aliases (*name), no tags (!!int) and at most {MAX_LEVELS} levels"
                raise yaml.MarkedYAMLError(
                    problem=f"expected {problem}",
                    problem_mark=event.start_mark,  # type: ignore[arg-type]
                )
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark, problem, place = error.problem_mark, str(error.problem), ""
        if mark:
            place = f", line {mark.line + 1}, column {mark.column + 1}"
            line = "".join(text.splitlines()[mark.line : mark.line + 1])
            if line[: mark.column + 1].endswith("\t"):
                problem = "expected spaces, got a tab"
        raise ConfigError(f"{origin}{place}: not valid YAML: {problem}") from None
    except Exception as error:  # ReaderError for control characters, ValueError for huge numbers
        reason = shown(" ".join(str(error).split()) or type(error).__name__, 150)
        raise ConfigError(f"{origin}: not valid YAML: {reason}") from None


def as_flow(value: Any) -> str:
    r"""Format `value` as one line of ASCII text that can be typed after `--set`.

    The text is JSON, except that non-ASCII characters are escaped as `\U` and eight digits. JSON
    escapes some of them as a pair of `\u` codes, which is not valid in YAML.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08X}", text)


def to_yaml(config: Config) -> str:
    """Return the text of a YAML file with all settings and a comment for each."""
    lines, section, group = [], "", ""
    for key, value in values(config).items():
        setting, (parent, _, name) = SETTINGS[key], key.rpartition(".")
        indent = "  " if parent else ""
        if parent != section:
            section = parent
            lines.append(f"\n{section}:")
        if setting.group != group and ": " in setting.group:  # a group such as `model: size`
            lines.append(f"{indent}# {setting.group.partition(': ')[2]}")
        group = setting.group
        lines.append(f"{indent}{name}: {_value(value)}".ljust(32) + f"  # {setting.description}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return `value` as YAML on one line, with non-printable characters escaped."""
    value = json.loads(json.dumps(value))  # tuples become lists
    text: str = yaml.safe_dump(value, width=10**6, allow_unicode=True, default_flow_style=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    # PyYAML writes the text "1e5" without quotes, so it would be read as a number
    return text if text.isprintable() and parse(text, "") == value else as_flow(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Describe the values in `new` that differ from those in `old`, by key."""
    return {
        key: f"{key} ({as_flow(old[key])} to {as_flow(value)})"
        for key, value in new.items()
        if value != old[key]
    }
