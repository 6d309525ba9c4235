//! The Lua program: joins the files of `lua/` into a function library, a script, or a table for scripts of
//! users.

use std::sync::LazyLock;

use geartrain_core::{OPTIONS, OptionInfo, OptionScope, OptionValues};

/// Used by many files. These come first, and their locals are visible in all that follow.
const SHARED: [&str; 3] =
    [include_str!("../lua/call.lua"), include_str!("../lua/numbers.lua"), include_str!("../lua/check.lua")];

/// A slice per file, with the table that it fills. Its locals are its own, because Lua allows 200 per
/// function.
const SLICES: [(&str, &str); 30] = [
    ("zset", include_str!("../lua/zset.lua")),
    ("publish", include_str!("../lua/publish.lua")),
    ("int64", include_str!("../lua/int64.lua")),
    ("order", include_str!("../lua/order.lua")),
    ("option", include_str!("../lua/options.lua")),
    ("stats", include_str!("../lua/stats.lua")),
    ("job", include_str!("../lua/job.lua")),
    ("attempts", include_str!("../lua/attempts.lua")),
    ("canceled", include_str!("../lua/canceled.lua")),
    ("put_options", include_str!("../lua/put_options.lua")),
    ("put", include_str!("../lua/put.lua")),
    ("finish", include_str!("../lua/finish.lua")),
    ("policies", include_str!("../lua/dependency_policies.lua")),
    ("pop", include_str!("../lua/pop.lua")),
    ("klasses", include_str!("../lua/klasses.lua")),
    ("recur", include_str!("../lua/recur.lua")),
    ("periodic", include_str!("../lua/periodic.lua")),
    ("capabilities", include_str!("../lua/capabilities.lua")),
    ("change", include_str!("../lua/change.lua")),
    ("read", include_str!("../lua/read.lua")),
    ("events", include_str!("../lua/events.lua")),
    ("parked", include_str!("../lua/parked.lua")),
    ("tick", include_str!("../lua/tick.lua")),
    ("why", include_str!("../lua/why.lua")),
    ("select", include_str!("../lua/select.lua")),
    ("set_aside", include_str!("../lua/set_aside.lua")),
    ("figures", include_str!("../lua/figures.lua")),
    ("qless", include_str!("../lua/qless.lua")),
    ("native", include_str!("../lua/native.lua")),
    ("batch", include_str!("../lua/batch.lua")),
];

/// What the JSON library has besides: the documents of operations, over the same slices.
const JSON_SLICES: [(&str, &str); 4] = [
    ("json", include_str!("../lua/json/text.lua")),
    ("fields", include_str!("../lua/json/fields.lua")),
    ("view", include_str!("../lua/json/views.lua")),
    ("operation", include_str!("../lua/json/operations.lua")),
];

/// The entry point of the JSON library.
const JSON_MAIN: &str = include_str!("../lua/json/main.lua");

/// The function of the JSON library, as on a geartrain server.
pub const JSON_FUNCTION: &str = "geartrain_json";

/// The entry point.
const MAIN: &str = include_str!("../lua/main.lua");

/// A function library, for Redis 7 and later.
#[derive(Debug)]
pub struct Library {
    /// The name of the library and of its function without flags. Contains a hash of the text, so that two
    /// versions can coexist.
    pub name: String,
    /// The same function flagged `no-writes`: Redis runs it beyond `maxmemory` and on replicas.
    pub reads: String,
    /// The same function flagged `allow-oom`, for requests that free memory: Redis runs it beyond
    /// `maxmemory`.
    pub frees: String,
    /// The argument of `FUNCTION LOAD`.
    pub text: String,
}

/// The whole program as one script.
#[derive(Debug)]
pub struct Script {
    /// The SHA-1 of the text in hex, for `EVALSHA`.
    pub sha: String,
    /// The argument of `SCRIPT LOAD`.
    pub text: String,
}

/// The program as a function library.
pub fn library() -> &'static Library {
    static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
        // While a library loads, it can only register functions, so the first call defines the rest.
        let body = format!(
            "{}\nlocal main\nlocal function enter(keys, arguments)\n  main = main or geartrain().main\n  return main(keys, arguments)\nend\n",
            program()
        );
        let name = format!("geartrain_{}", &sha(&body)[..16]);
        let (reads, frees) = (format!("{name}_reads"), format!("{name}_frees"));
        let flagged = |name: &str, flag: &str| {
            let function = format!("function_name = '{name}', callback = enter, flags = {{ '{flag}' }}");
            format!("redis.register_function{{ {function} }}\n")
        };
        let text = format!(
            "#!lua name={name}\n{body}redis.register_function('{name}', enter)\n{}{}",
            flagged(&reads, "no-writes"),
            flagged(&frees, "allow-oom")
        );
        Library { name, reads, frees, text }
    });
    &LIBRARY
}

/// The program as a script: called without keys it is a Qless script, with one it speaks our wire format.
pub fn script() -> &'static Script {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
        let text = format!("{}\nreturn geartrain().main(KEYS, ARGV)\n", program());
        Script { sha: sha(&text), text }
    });
    &SCRIPT
}

/// The program as a local table `geartrain`, for scripts of users.
pub fn composable() -> &'static str {
    static COMPOSABLE: LazyLock<String> =
        LazyLock::new(|| format!("local geartrain = (function()\n{}return geartrain()\nend)()\n", program()));
    &COMPOSABLE
}

/// The JSON library, for a bare Redis 7 or Valkey: `FCALL geartrain_json 1 NAMESPACE DOCUMENT`.
///
/// Function names are unique in a Redis, so loading it again needs `REPLACE`. The name of the `pinned` library and of
/// its function contain a hash of the text, so that any number of versions coexist.
pub fn json_library(pinned: bool) -> String {
    let tables = JSON_SLICES.map(|(table, _)| table).join(", ");
    let empty = JSON_SLICES.map(|_| "{}").join(", ");
    let blocks = JSON_SLICES.map(|(table, file)| slice(table, "", file)).concat();
    let body = format!(
        "{}local main\nlocal function enter(keys, arguments)\n  main = main or geartrain()\n  return main(keys, arguments)\nend\n",
        program_with(&format!("local {tables} = {empty}\n{blocks}"), JSON_MAIN, "main_json")
    );
    let name =
        if pinned { format!("{JSON_FUNCTION}_{}", &sha(&body)[..16]) } else { JSON_FUNCTION.to_owned() };
    format!("#!lua name={name}\n{body}redis.register_function('{name}', enter)\n")
}

/// A function that defines everything and returns the entry points.
fn program() -> String {
    program_with("", "", "{ main = main, within = within }")
}

/// The same with more slices, more after the entry points, and what it returns.
fn program_with(more_slices: &str, more_entries: &str, returned: &str) -> String {
    let options = option_tables();
    let blocks =
        SLICES.map(|(table, file)| slice(table, if table == "option" { &options } else { "" }, file));
    format!(
        "local function geartrain()\n{}{}{more_slices}{MAIN}{more_entries}return {returned}\nend\n",
        SHARED.concat(),
        blocks.concat()
    )
}

/// Defines a slice on its first use.
fn slice(table: &str, generated: &str, file: &str) -> String {
    format!("lazily({table}, function()\n{generated}{file}end)\n")
}

/// The tables of options.lua, from [`OPTIONS`].
fn option_tables() -> String {
    let defaults = |listed: bool| {
        let options = OPTIONS
            .iter()
            .filter(|option| option.listed_by_qless == listed && option.scope != OptionScope::Queue);
        let entry = |option: &OptionInfo| match option.values {
            OptionValues::Text => format!("['{}'] = '{}', ", option.name, option.default),
            OptionValues::Number { .. } => format!("['{}'] = {}, ", option.name, option.default),
        };
        options.map(entry).collect::<String>()
    };
    let range = |option: &OptionInfo| match option.values {
        OptionValues::Text => String::new(),
        OptionValues::Number { zero, whole, max } => format!(
            "{{ name = '{}', zero = {zero}, whole = {whole}, max = {max}, global = {}, queue = {}, text = '{}' }},\n",
            option.name,
            option.scope != OptionScope::Queue,
            option.scope != OptionScope::Global,
            option.range()
        ),
    };
    format!(
        "option.listed = {{ {}}}\noption.unlisted = {{ {}}}\nfunction option.ranges() return {{\n{}}} end\n",
        defaults(true),
        defaults(false),
        OPTIONS.iter().map(range).collect::<String>()
    )
}

fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).hexdigest()
}
