//! Our script for Redis, as a function library and as a script to be loaded.

/// A function library, and the one function in it, which has the same name.
#[derive(Debug)]
pub struct Library {
    /// Its name, with a hash of its text in it.
    pub name: String,
    /// The text.
    pub text: String,
}

/// A script.
#[derive(Debug)]
pub struct Script {
    /// The SHA-1 of its text, in hex.
    pub sha: String,
    /// The text.
    pub text: String,
}

/// The library.
pub fn library() -> &'static Library {
    static LIBRARY: std::sync::LazyLock<Library> =
        std::sync::LazyLock::new(|| Library { name: "geartrain_".into(), text: String::new() });
    &LIBRARY
}

/// The script.
pub fn script() -> &'static Script {
    static SCRIPT: std::sync::LazyLock<Script> =
        std::sync::LazyLock::new(|| Script { sha: String::new(), text: String::new() });
    &SCRIPT
}

/// The library part alone.
pub fn composable() -> &'static str {
    ""
}
