//! Shell completion. The script of a shell asks this command at each completion, so it also completes what the queue
//! knows: queues, job ids, groups of failures and workers.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use clap_complete::env::Shells;
use geartrain::{
    Call, Client, Count, Failed, Failures, Group, Jid, Jobs, Listing, Page, QueueName, Queues, RedisBackend,
    RedisUrl, Reply, Target, WorkerName, Workers,
};

use crate::{args, password};

/// Names the shell that asks. Its script sets it.
const VARIABLE: &str = "GEARTRAIN_COMPLETE";

/// How long the queue may take to answer. Without an answer only commands and flags are completed.
const DEADLINE: Duration = Duration::from_millis(400);

/// How many jobs of each listing are candidates, and how many queues and groups are asked for their jobs.
const LISTED_MAX: i64 = 100;

/// Writes the script that makes a shell ask this command.
pub(crate) fn write_script(shell: clap_complete::Shell, out: &mut dyn Write) -> io::Result<()> {
    let shell = shell.to_string();
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&shell) else { return Ok(()) };
    completer.write_registration(VARIABLE, "geartrain", "geartrain", "geartrain", out)?;
    if shell == "zsh" {
        // Loaded as a function of its own name, zsh expects the first answer at once.
        writeln!(out, "[[ $funcstack[1] == _geartrain ]] && _clap_dynamic_completer_geartrain \"$@\"\ntrue")?;
    }
    Ok(())
}

/// Answers a shell, if one asks. Errors are not shown: they would appear in the middle of a line being typed.
pub(crate) fn answer(arguments: &[OsString]) -> Option<ExitCode> {
    let shell = std::env::var(VARIABLE).ok()?;
    let [_, separator, words @ ..] = arguments else { return None };
    if separator != "--" || words.is_empty() {
        return None;
    }
    let directory = std::env::current_dir().ok();
    let mut reply = Vec::new();
    let written = match shell.as_str() {
        "bash" => write_for_bash(words, directory.as_deref(), &mut reply),
        other => match Shells::builtins().completer(other) {
            Some(completer) => {
                let mut command = command_for(words);
                completer.write_complete(&mut command, words.to_vec(), directory.as_deref(), &mut reply)
            }
            None => Err(io::Error::other("unknown shell")),
        },
    };
    let done = written.and_then(|()| io::stdout().write_all(&reply));
    Some(if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Bash splits words at colons and equals signs, which URLs and names of queues contain: the parts are joined, and of
/// each candidate only what comes behind the last such character is the answer.
fn write_for_bash(words: &[OsString], directory: Option<&Path>, reply: &mut dyn Write) -> io::Result<()> {
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok()).unwrap_or(0);
    let words = join_parts(words.get(..=index).unwrap_or(words));
    let Some(current) = words.last().cloned() else { return Ok(()) };
    let mut command = command_for(&words);
    let index = words.len() - 1;
    let candidates = complete(&mut command, words, index, directory)?;
    let mut texts: Vec<String> =
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect();
    // For an empty word flags are offered only if there is nothing else.
    if current.is_empty() && texts.iter().any(|text| !text.starts_with('-')) {
        texts.retain(|text| !text.starts_with('-'));
    }
    let current = current.to_string_lossy();
    let kept = current.rfind([':', '=']).map_or(0, |position| position + 1);
    let texts: Vec<&str> = texts.iter().map(|text| text.get(kept..).unwrap_or(text)).collect();
    let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
    write!(reply, "{}", texts.join(&separator))
}

/// The words of a command line, of which Bash has made a part of each run of colons and equals signs.
fn join_parts(parts: &[OsString]) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut joins = false;
    for part in parts {
        let is_separator =
            !part.is_empty() && part.as_encoded_bytes().iter().all(|byte| b":=".contains(byte));
        match words.last_mut() {
            Some(word) if joins || is_separator => word.push(part),
            _ => words.push(part.clone()),
        }
        joins = is_separator;
    }
    words
}

/// The command line, in which arguments of these types have candidates from the queue.
fn command_for(words: &[OsString]) -> clap::Command {
    add_candidates(args::command(), &words.into())
}

fn add_candidates(command: clap::Command, words: &Arc<[OsString]>) -> clap::Command {
    let command = command.mut_args(|argument| match Names::of(&argument) {
        Some(names) => {
            let words = words.clone();
            argument.add(ArgValueCompleter::new(move |current: &OsStr| names.complete(current, &words)))
        }
        None => argument,
    });
    command.mut_subcommands(|subcommand| add_candidates(subcommand, words))
}

/// What the queue knows names of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Queues,
    Jobs,
    Groups,
    Workers,
}

impl Names {
    fn of(argument: &clap::Arg) -> Option<Names> {
        let kind = argument.get_value_parser().type_id();
        let kinds = [
            (TypeId::of::<QueueName>(), Names::Queues),
            (TypeId::of::<Jid>(), Names::Jobs),
            (TypeId::of::<Group>(), Names::Groups),
            (TypeId::of::<WorkerName>(), Names::Workers),
        ];
        kinds.into_iter().find(|(of, _)| kind == *of).map(|(_, names)| names)
    }

    fn complete(self, current: &OsStr, words: &[OsString]) -> Vec<CompletionCandidate> {
        let Some(current) = current.to_str() else { return Vec::new() };
        let (sender, receiver) = mpsc::channel();
        let words = words.to_vec();
        // It ends with the process, which does not wait for it.
        std::thread::spawn(move || {
            let names = pollster::block_on(async { self.list(&connect(&words).await?).await });
            let _ = sender.send(names);
        });
        let names = receiver.recv_timeout(DEADLINE).ok().flatten().unwrap_or_default();
        let fitting = names.into_iter().filter(|name| name.starts_with(current) && is_plain(name));
        fitting.map(CompletionCandidate::new).collect()
    }

    async fn list(self, client: &Client) -> Option<BTreeSet<String>> {
        match self {
            Names::Queues => Some(texts(queues(client).await?)),
            Names::Groups => Some(texts(client.run(Failures).await.ok()?.into_keys())),
            Names::Workers => {
                Some(texts(client.run(Workers).await.ok()?.into_iter().map(|worker| worker.name)))
            }
            Names::Jobs => jids(client).await,
        }
    }
}

fn texts(names: impl IntoIterator<Item = impl ToString>) -> BTreeSet<String> {
    names.into_iter().map(|name| name.to_string()).collect()
}

/// Whether every shell takes a name as it is. What clients call their jobs is not executed by completing it.
fn is_plain(name: &str) -> bool {
    name.chars().all(|letter| letter.is_alphanumeric() || "_./:@%+=,-".contains(letter))
}

async fn queues(client: &Client) -> Option<Vec<QueueName>> {
    Some(client.run(Queues::default()).await.ok()?.into_iter().map(|queue| queue.name).collect())
}

/// The first jobs of every listing.
async fn jids(client: &Client) -> Option<BTreeSet<String>> {
    let page = Page { offset: 0, count: Count::new(LISTED_MAX).ok()? };
    let mut calls = vec![Call::from(Jobs { which: Listing::Complete, page })];
    for queue in queues(client).await?.into_iter().take(LISTED_MAX as usize) {
        let listings =
            [Listing::Running, Listing::Stalled, Listing::Waiting, Listing::Scheduled, Listing::Depends];
        calls.extend(listings.map(|listing| Call::from(Jobs { which: listing(queue.clone()), page })));
    }
    // A backend without groups has no failed jobs.
    let groups = client.run(Failures).await.unwrap_or_default();
    calls
        .extend(groups.into_keys().take(LISTED_MAX as usize).map(|group| Call::from(Failed { group, page })));
    let mut jids = BTreeSet::new();
    for answer in client.batch(calls).await.ok()? {
        match answer {
            Ok(Reply::Jobs(listed)) => jids.extend(texts(listed)),
            Ok(Reply::Failed(listed)) => jids.extend(texts(listed.jids)),
            _ => {}
        }
    }
    Some(jids)
}

/// Connects to the queue that the words name, with the settings of any other command. A directory is used through the
/// process that has it open and not opened, which could take long.
async fn connect(words: &[OsString]) -> Option<Client> {
    let mut arguments: Vec<OsString> = vec!["geartrain".into()];
    for flag in ["--url", "--context", "--config", "--password-file"] {
        let value = args::value_of(flag, words);
        // A move has jobs of the queue that it moves from.
        let value = if flag == "--url" { value.or_else(|| args::value_of("--from", words)) } else { value };
        arguments.extend(value.map(|value| format!("{flag}={value}").into()));
    }
    arguments.push("queues".into());
    let cli = crate::complete(args::parse(&arguments), &arguments).ok()?;
    match Target::of(&cli.url).ok()? {
        Target::Memory => None,
        Target::Directory { directory, .. } => {
            let socket = RedisUrl::of_socket(geartrain::socket_in(&directory));
            Some(Client::new(Arc::new(RedisBackend::connect(socket).await.ok()?)))
        }
        _ => {
            let password = password::read(cli.password_file.as_deref()).ok()?;
            let url = password.map_or(cli.url.clone(), |password| password::add_to(&cli.url, &password.text));
            geartrain::connect(&url).await.ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_words_are_joined() {
        let joined = |line: &str| {
            let parts: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            join_parts(&parts).into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>()
        };
        let url = "redis://h:7411";
        assert_eq!(
            joined("geartrain --url redis : //h : 7411 get j1"),
            ["geartrain", "--url", url, "get", "j1"]
        );
        assert_eq!(joined("geartrain --url = redis : //h : 7411"), ["geartrain", "--url=redis://h:7411"]);
        assert_eq!(joined("geartrain get "), ["geartrain", "get", ""]);
        assert_eq!(joined("geartrain get a :: b"), ["geartrain", "get", "a::b"]);
    }

    #[test]
    fn names_that_a_shell_would_execute_are_no_candidates() {
        for plain in ["j1", "mail/new", "a::b", "größe", "01890a5d-ac96-774b"] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in ["$(reboot)", "a b", "a;b", "`a`", "a\nb", "a*", "~"] {
            assert!(!is_plain(other), "{other}");
        }
    }

    #[test]
    fn arguments_have_the_names_of_their_type() {
        let command = args::command();
        let names = |subcommand: &str, argument: &str| {
            let subcommand = command.find_subcommand(subcommand).unwrap();
            Names::of(subcommand.get_arguments().find(|one| one.get_id() == argument).unwrap())
        };
        assert_eq!(names("get", "jid"), Some(Names::Jobs));
        assert_eq!(names("put", "queue"), Some(Names::Queues));
        assert_eq!(names("work", "queues"), Some(Names::Queues));
        assert_eq!(names("unfail", "group"), Some(Names::Groups));
        assert_eq!(names("pop", "worker"), Some(Names::Workers));
        assert_eq!(names("put", "priority"), None);
    }
}
