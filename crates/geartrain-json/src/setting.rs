//! Settings of a program as JSON: the value that is in effect, and where it comes from.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// A setting of a program, as it is in effect.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SettingView {
    /// Its name.
    pub name: String,
    /// A text, a flag or a list of texts; null if it is not set. Never a password.
    pub value: Option<Value>,
    /// Where the value comes from.
    pub origin: SettingOrigin,
    /// The flag that set it, with its dashes.
    pub flag: Option<String>,
    /// The environment variable that set it.
    pub variable: Option<String>,
    /// The configuration file that set it.
    pub file: Option<String>,
    /// The line in that file.
    pub line: Option<usize>,
}

/// Where the value of a setting comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettingOrigin {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment,
    /// The configuration file.
    File,
    /// A directory of the service manager.
    Credential,
    /// The default.
    Default,
}

impl SettingView {
    /// A setting that has its default value.
    pub fn new(name: impl Into<String>, value: impl Into<Option<Value>>) -> SettingView {
        SettingView {
            name: name.into(),
            value: value.into(),
            origin: SettingOrigin::Default,
            flag: None,
            variable: None,
            file: None,
            line: None,
        }
    }
}
