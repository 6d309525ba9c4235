//! Lua scripts: what other clients of a layout must see as one step.

use std::sync::LazyLock;

/// A script and its SHA-1.
pub(crate) struct Script {
    text: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str, sha: fn() -> String) -> Script {
        Script { text, sha: LazyLock::new(sha) }
    }

    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

/// Defines statics of scripts by their files, which are joined.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident => $($file:literal)+,)*) => {
        $(
            $(#[$doc])*
            pub(super) static $name: $crate::layout::Script = $crate::layout::Script::new(
                concat!($(include_str!($file)),+),
                || sha1_smol::Sha1::from(concat!($(include_str!($file)),+)).hexdigest(),
            );
        )*
    };
}

pub(crate) use scripts;
