//! The queue's rules for Redis: the Lua of `lua/`, joined into what is sent to a Redis or printed for people.

use std::sync::LazyLock;

/// What many files use. These come first and share their names with all that follow.
const SHARED: [&str; 3] =
    [include_str!("../lua/call.lua"), include_str!("../lua/numbers.lua"), include_str!("../lua/check.lua")];

/// The rules, each file with the table that it fills. A file keeps its other names to itself, because Lua takes 200 of them in one place.
const RULES: [(&str, &str); 22] = [
    ("zset", include_str!("../lua/zset.lua")),
    ("say", include_str!("../lua/say.lua")),
    ("large", include_str!("../lua/large.lua")),
    ("order", include_str!("../lua/order.lua")),
    ("option", include_str!("../lua/options.lua")),
    ("stats", include_str!("../lua/stats.lua")),
    ("job", include_str!("../lua/job.lua")),
    ("side", include_str!("../lua/side.lua")),
    ("put", include_str!("../lua/put.lua")),
    ("finish", include_str!("../lua/finish.lua")),
    ("pop", include_str!("../lua/pop.lua")),
    ("recur", include_str!("../lua/recur.lua")),
    ("able", include_str!("../lua/able.lua")),
    ("change", include_str!("../lua/change.lua")),
    ("read", include_str!("../lua/read.lua")),
    ("events", include_str!("../lua/events.lua")),
    ("sleep", include_str!("../lua/sleep.lua")),
    ("tick", include_str!("../lua/tick.lua")),
    ("why", include_str!("../lua/why.lua")),
    ("qless", include_str!("../lua/qless.lua")),
    ("native", include_str!("../lua/native.lua")),
    ("batch", include_str!("../lua/batch.lua")),
];

/// Where calls come in.
const MAIN: &str = include_str!("../lua/main.lua");

/// A function library, for a Redis that has functions.
#[derive(Debug)]
pub struct Library {
    /// Its name, and that of the function that may do anything. It is made from the text, so that two
    /// versions live side by side.
    pub name: String,
    /// The same function under a name of its own, flagged `no-writes`: Redis runs it beyond `maxmemory` and
    /// on replicas.
    pub reads: String,
    /// The same once more, flagged `allow-oom`, for requests that free memory: Redis runs it beyond
    /// `maxmemory`.
    pub frees: String,
    /// What `FUNCTION LOAD` is given.
    pub text: String,
}

/// A script that is the whole queue.
#[derive(Debug)]
pub struct Script {
    /// The SHA-1 of its text in hex, which is what `EVALSHA` is given.
    pub sha: String,
    /// What `SCRIPT LOAD` is given.
    pub text: String,
}

/// The rules as a function library.
pub fn library() -> &'static Library {
    static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
        // While a library is loaded Redis has nothing for it but a way to register functions, so the rules are defined by the first call.
        let body = format!(
            "{}\nlocal main\nlocal function enter(keys, arguments)\n  main = main or geartrain().main\n  return main(keys, arguments)\nend\n",
            rules()
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

/// The rules as a script: with no keys it is a Qless script, with one it speaks our own wire.
pub fn script() -> &'static Script {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
        let text = format!("{}\nreturn geartrain().main(KEYS, ARGV)\n", rules());
        Script { sha: sha(&text), text }
    });
    &SCRIPT
}

/// The rules alone, as a local table `geartrain`, for scripts of other people's own.
pub fn composable() -> &'static str {
    static COMPOSABLE: LazyLock<String> =
        LazyLock::new(|| format!("local geartrain = (function()\n{}return geartrain()\nend)()\n", rules()));
    &COMPOSABLE
}

/// A function that defines all the rules and answers what can be called.
fn rules() -> String {
    let blocks = RULES.map(|(table, file)| format!("lazily({table}, function()\n{file}end)\n")).concat();
    format!(
        "local function geartrain()\n{}{blocks}{MAIN}return {{ main = main, within = within }}\nend\n",
        SHARED.concat()
    )
}

fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).hexdigest()
}
