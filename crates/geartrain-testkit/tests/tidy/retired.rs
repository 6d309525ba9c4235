//! Retired words: docs/glossary.md says which word means what, and these have been replaced.

use super::{Source, assert_none, sources};

/// Identifiers that are not used any more, with the word to write instead.
const RETIRED_IDENTIFIERS: &[(&str, &str)] = &[
    ("Afterwards", "OnEnd"),
    ("Allot", "AllocateIds"),
    ("Aside", "a background task"),
    ("Bed", "Registration"),
    ("Census", "MemoryReport"),
    ("Chance", "RandomUnit"),
    ("Crier", "PublisherTask"),
    ("Crowd", "LoadClients"),
    ("Deliveries", "ResultStream"),
    ("Delivery", "StreamMessage"),
    ("Desk", "the commit queue"),
    ("Door", "Connector"),
    ("Ear", "Receiver"),
    ("Ears", "Subscriber"),
    ("Followers", "ResultStreams"),
    ("Giver", "SubmitMode"),
    ("Gone", "WorkerLost, or Shutdown"),
    ("HandBack", "Release"),
    ("Happened", "EventLog, or a word for what it is"),
    ("How", "JobEnding"),
    ("Keeper", "CommitPipeline"),
    ("Kept", "StoredResult"),
    ("LastOut", "ShutdownGuard"),
    ("Leave", "Detach"),
    ("Little", "Small"),
    ("Lives", "OrphanPolicy"),
    ("LookAgain", "ClockJumped"),
    ("Mouth", "Sender"),
    ("Much", "Bulk"),
    ("Ordered", "OrderStatTree"),
    ("Pace", "RateLimiter"),
    ("Particulars", "JobDetails"),
    ("Patience", "RetryBudget"),
    ("Picture", "Snapshot"),
    ("Places", "SpillMap"),
    ("Posted", "Envelope"),
    ("Premises", "DataDir"),
    ("Roused", "ParkedPopNotice"),
    ("Scribe", "Committer"),
    ("Seat", "EngineCell"),
    ("Sleepers", "IdleWorkers, or ParkedPops"),
    ("Station", "WorkerConnections"),
    ("Stirred", "dirty queues"),
    ("Teller", "Generator"),
    ("Terms", "PutOptions"),
    ("Timed", "DueKey"),
    ("Told", "StreamItem"),
    ("UnderWay", "InFlightGuard"),
    ("Undone", "ClientError"),
    ("Waiter", "ResultWaiter, or a parked pop"),
    ("What", "a noun"),
    ("World", "Fixture"),
    ("able_at_all", "capabilities"),
    ("farewell", "drain"),
    ("go_on_with_snapshot", "continue_snapshot"),
    ("look_ahead", "prefetch"),
    ("puts_off", "defer_ephemeral"),
    ("stir", "mark_dirty"),
    ("stirred", "dirty_queues"),
    ("take_up", "dispatch"),
    ("tell_tamely", "generate_timely"),
];

/// Modules, by their file names, that have been renamed.
const RETIRED_MODULES: &[(&str, &str)] = &[
    ("able", "capabilities"),
    ("aside", "background"),
    ("care", "maintenance"),
    ("census", "memory_report"),
    ("crew", "workers"),
    ("desk", "commit"),
    ("ears", "subscriber"),
    ("followers", "result_streams"),
    ("happened", "event_log"),
    ("inbox", "mailbox"),
    ("keeper", "commit"),
    ("look_ahead", "prefetch"),
    ("mail", "router"),
    ("particulars", "job_details"),
    ("places", "spill_map"),
    ("rare", "cold"),
    ("room", "reservation"),
    ("seat", "inline_exec"),
    ("side", "extension"),
    ("sleepers", "idle_workers, or parked"),
    ("station", "worker_conns"),
    ("stories", "traces, or simulation"),
    ("story", "trace"),
    ("teller", "generator"),
    ("terms", "put_options"),
    ("waiters", "parked"),
    ("words", "redis_commands"),
    ("world", "fixture"),
];

/// Pronouns in place of a noun. A comment may need one now and then; the workspace has a budget.
const PRONOUNS: [&str; 4] = ["whoever", "somebody", "nobody", "those who"];
const PRONOUN_LINES_MAX: usize = 20;

const LINE_CHARS_MAX: usize = 120;

#[test]
fn retired_identifiers_do_not_come_back() {
    let mut findings = Vec::new();
    for source in sources().iter().filter(|source| source.is(".rs") && !source.path.contains("/tidy/")) {
        for (number, line) in source.lines() {
            for word in identifiers(code(line)) {
                if let Some((_, instead)) = RETIRED_IDENTIFIERS.iter().find(|(retired, _)| *retired == word) {
                    findings.push(format!("{}:{number}: `{word}` is retired: write {instead}", source.path));
                }
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn retired_modules_do_not_come_back() {
    let mut findings = Vec::new();
    for source in sources()
        .iter()
        .filter(|source| source.is(".rs") || source.is(".lua"))
        .filter(|source| source.path.starts_with("crates/"))
    {
        for part in source.path.split('/') {
            let stem = part.rsplit_once('.').map_or(part, |(stem, _)| stem);
            if let Some((_, instead)) = RETIRED_MODULES.iter().find(|(retired, _)| *retired == stem) {
                findings.push(format!("{}: a module `{stem}` is retired: call it {instead}", source.path));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn pronouns_do_not_stand_for_nouns() {
    let mut comments = Vec::new();
    let mut findings = Vec::new();
    let has_pronoun = |text: &str| {
        let text = text.to_lowercase();
        PRONOUNS.iter().any(|pronoun| text.contains(pronoun))
    };
    for source in sources().iter().filter(|source| !source.path.contains("/tidy")) {
        for (number, line) in source.lines() {
            let (text, comment) = match () {
                () if source.is(".rs") => (code(line), comment(line, "//")),
                () if source.is(".lua") => (line, comment(line, "--")),
                () if source.is(".md") => ("", line),
                () => continue,
            };
            let finding = || {
                format!("{}:{number}: name the subject instead of a pronoun: {}", source.path, line.trim())
            };
            if source.is(".rs") && comment.starts_with("//!") && has_pronoun(comment) {
                findings.push(finding());
            } else if has_pronoun(comment) {
                comments.push(finding());
            }
            if source.path.contains("/src/") && !line.contains("serde(") && strings(text).any(has_pronoun) {
                findings.push(finding());
            }
        }
    }
    if comments.len() > PRONOUN_LINES_MAX {
        findings.append(&mut comments);
    }
    assert_none(&findings);
}

#[test]
fn lines_fit_a_screen() {
    let mut findings = Vec::new();
    for source in
        sources().iter().filter(|source| !source.path.starts_with("peers/") && !source.is("Cargo.toml"))
    {
        let mut is_quoted = false;
        for (number, line) in source.lines() {
            let text =
                if source.is(".rs") { comment(line, "//").trim_start_matches(['/', '!', ' ']) } else { line };
            is_quoted ^= text.trim_start().starts_with("```");
            let is_table = text.trim_start().starts_with('|');
            // The formatter wraps code and cannot break a string; a link cannot be broken either.
            let is_unbreakable = source.is(".rs") && text.is_empty() || line.contains("https://");
            if line.chars().count() > LINE_CHARS_MAX && !is_table && !is_quoted && !is_unbreakable {
                let chars = line.chars().count();
                findings.push(format!("{}:{number}: {chars} characters: wrap at 110", source.path));
            }
        }
    }
    assert_none(&findings);
}

/// A line without its comment. A `//` within a string is taken for a string's.
fn code(line: &str) -> &str {
    let (mut in_string, mut escaped) = (false, false);
    for (index, byte) in line.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'/' if !in_string && line[index..].starts_with("//") => return &line[..index],
            _ => {}
        }
    }
    line
}

fn comment<'a>(line: &'a str, mark: &str) -> &'a str {
    match mark {
        "//" => &line[code(line).len()..],
        _ => line.find(mark).map_or("", |start| &line[start..]),
    }
}

/// The identifiers of a line of code, without what stands in string literals.
fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    let outside = code.split('"').step_by(2);
    outside
        .flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
}

/// The string literals of a line of code.
fn strings(code: &str) -> impl Iterator<Item = &str> {
    code.split('"').skip(1).step_by(2)
}

/// A finding of the checks themselves.
#[test]
fn comments_strings_and_code_are_told_apart() {
    let line = r#"let url = "http://a"; // whoever"#;
    assert_eq!(code(line), r#"let url = "http://a"; "#);
    assert_eq!(comment(line, "//"), "// whoever");
    assert_eq!(identifiers(code(line)).collect::<Vec<_>>(), ["let", "url"]);
    assert_eq!(strings(code(line)).collect::<Vec<_>>(), ["http://a"]);
    let source = Source { path: "a.rs".into(), text: "one\ntwo".into() };
    assert_eq!(source.lines().collect::<Vec<_>>(), [(1, "one"), (2, "two")]);
}
