//! Opaque configuration of this driver: `parameters` ⇄ settings.
//!
//! An unknown key or word is refused, so that a mistyped limit is not a missing one. The same code checks a manifest when it is
//! read, long before any claim is prepared.

use aliquot_core::dra::OpaqueConfig;
use aliquot_core::grant::{PartitionDemand, SettingWord, ShareSettings};
use serde::Deserialize;
use serde_json::Value;

use crate::error_text::json_cause;

/// Name of this DRA driver.
pub(crate) const DRIVER: &str = "aliquot.dev";
/// Version of the configuration that this code reads.
const API_VERSION: &str = "aliquot.dev/v1";

/// The type fields of every configuration.
#[derive(Deserialize)]
struct ConfigType {
    #[serde(rename = "apiVersion")]
    api_version: Value,
    kind: Value,
}

// Fields accept any value, so that the message about an invalid one can name the field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "the two type fields are named so that they do not count as unknown")]
struct ShareConfig {
    api_version: Value,
    kind: Value,
    compute_policy: Option<Value>,
    priority: Option<Value>,
    fail_mode: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "the two type fields are named so that they do not count as unknown")]
struct PartitionConfig {
    api_version: Value,
    kind: Value,
    minimum_isolation: Option<Value>,
}

/// The fault of a configuration, if it is of this driver and has one.
pub(crate) fn fault(config: &OpaqueConfig) -> Option<String> {
    if config.driver != DRIVER {
        return None;
    }
    apply(&config.parameters, &mut ShareSettings::default(), &mut None).err()
}

/// Sets the settings that the configuration names; the others stay.
///
/// # Errors
/// The problem, with the field's name.
pub(super) fn apply(
    parameters: &str,
    settings: &mut ShareSettings,
    demand: &mut Option<PartitionDemand>,
) -> Result<(), String> {
    let typed: ConfigType = parse(parameters)?;
    if typed.api_version != API_VERSION {
        return Err(format!("apiVersion is {}; expected {API_VERSION}", shown(&typed.api_version)));
    }
    match typed.kind.as_str() {
        Some("ShareConfig") => {
            let config: ShareConfig = parse(parameters)?;
            set(&mut settings.compute, config.compute_policy.as_ref(), "computePolicy")?;
            set(&mut settings.priority, config.priority.as_ref(), "priority")?;
            set(&mut settings.fail_mode, config.fail_mode.as_ref(), "failMode")
        }
        Some("PartitionConfig") => {
            let config: PartitionConfig = parse(parameters)?;
            if let Some(value) = &config.minimum_isolation {
                *demand = Some(PartitionDemand { isolation_at_least: word(value, "minimumIsolation")? });
            }
            Ok(())
        }
        _ => Err(format!("kind is {}; expected ShareConfig or PartitionConfig", shown(&typed.kind))),
    }
}

/// Settings as a configuration that sets them; `None`: the defaults.
pub(crate) fn recorded(settings: ShareSettings) -> Option<OpaqueConfig> {
    let parameters = serde_json::json!({
        "apiVersion": API_VERSION,
        "kind": "ShareConfig",
        "computePolicy": settings.compute.word(),
        "priority": settings.priority.word(),
        "failMode": settings.fail_mode.word(),
    });
    let config = OpaqueConfig { driver: DRIVER.to_owned(), parameters: parameters.to_string() };
    (settings != ShareSettings::default()).then_some(config)
}

/// Parses a configuration. Messages leave out the position in the JSON, which the user did not write.
fn parse<'t, T: Deserialize<'t>>(parameters: &'t str) -> Result<T, String> {
    serde_json::from_str(parameters).map_err(|error| json_cause(&error))
}

fn set<T: SettingWord>(setting: &mut T, value: Option<&Value>, field: &str) -> Result<(), String> {
    if let Some(value) = value {
        *setting = word(value, field)?;
    }
    Ok(())
}

fn word<T: SettingWord>(value: &Value, field: &str) -> Result<T, String> {
    let known = value.as_str().and_then(T::of_word);
    known.ok_or_else(|| format!("{field} is {}; expected {}", shown(value), T::words()))
}

/// Characters of an invalid value that a message shows.
const SHOWN: usize = 80;

fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.char_indices().nth(SHOWN) {
        None => format!("`{text}`"),
        Some((end, _)) => format!("`{}…`", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::grant::{ComputePolicy, FailMode, Priority};

    use super::*;

    fn of(driver: &str, parameters: &str) -> Option<String> {
        fault(&OpaqueConfig { driver: driver.to_owned(), parameters: parameters.to_owned() })
    }

    #[test]
    fn faults_name_the_field_and_what_is_expected() {
        let cases = [
            (r#"{"kind":"ShareConfig"}"#, "missing field `apiVersion`"),
            (r#"{"apiVersion":1,"kind":"ShareConfig"}"#, "apiVersion is `1`; expected aliquot.dev/v1"),
            (
                r#"{"apiVersion":"aliquot.dev/v1","kind":"Share"}"#,
                "kind is `Share`; expected ShareConfig or PartitionConfig",
            ),
            (
                r#"{"apiVersion":"aliquot.dev/v1","kind":"ShareConfig","priority":3}"#,
                "priority is `3`; expected low, normal or high",
            ),
            (
                r#"{"apiVersion":"aliquot.dev/v1","kind":"ShareConfig","prio":"low"}"#,
                "unknown field `prio`, expected one of `apiVersion`, `kind`, `computePolicy`, `priority`, `failMode`",
            ),
            (
                r#"{"apiVersion":"aliquot.dev/v1","kind":"PartitionConfig","priority":"low"}"#,
                "unknown field `priority`, expected one of `apiVersion`, `kind`, `minimumIsolation`",
            ),
        ];
        for (parameters, expected) in cases {
            assert_eq!(of(DRIVER, parameters).as_deref(), Some(expected), "{parameters}");
            assert_eq!(of("gpu.example.com", parameters), None, "{parameters}");
        }
    }

    #[test]
    fn recorded_settings_come_back() {
        let (compute, priority, fail_mode) = (ComputePolicy::Burst, Priority::Low, FailMode::Open);
        let written = ShareSettings { compute, priority, fail_mode };
        let config = recorded(written).unwrap();
        let mut read = ShareSettings::default();
        apply(&config.parameters, &mut read, &mut None).unwrap();
        assert_eq!(read, written);
        assert_eq!(recorded(ShareSettings::default()), None);
    }
}
