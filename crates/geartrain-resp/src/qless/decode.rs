//! Decodes Qless's commands, a function for each: Qless's checks in Qless's order, and the command that
//! executes it.

use bytes::Bytes;
use geartrain_core::{
    AddTags, AllConfig, Call, Cancel, Command, Complete, Count, Cycles, Depend, DependChange, Every,
    Existing, Fail, Failed, Failures, ForgetQueues, ForgetWorkers, Get, GetConfig, GetMany, GetRecurring,
    Heartbeat, Holder, Jid, Jobs, Length, Listing, Log, Next, Page, Pause, Peek, Pop, Priority, Put, Queues,
    Recur, RemoveTags, Resume, Retry, SetConfig, SetPriority, Stats, TagRecurring, Tagged, Timeout,
    Timestamp, TopTags, Track, Tracked, Unfail, Unrecur, UnsetConfig, UntagRecurring, UpdateRecurring,
    WorkerJobs, Workers,
};

use super::arguments::{
    Arguments, ErrorText, Options, data, each, fields, group, is_json, jid, klass, queue, read_number,
    read_whole, rewritten, seconds, shown, tag, text, worker,
};
use super::{CallContext, Echo, Verb, number};

type Decoded = Result<(Command, CallContext), ErrorText>;

const NO_QUEUE: &str = "Queue(): no queue name provided";
const NO_JID: &str = "Job(): no jid provided";
const NO_RECURRING: &str = "Recurring(): no jid provided";
const JOBS_OFFSET: &str = "Jobs(): Arg \"offset\" not a number: ";
const JOBS_COUNT: &str = "Jobs(): Arg \"count\" not a number: ";
pub(super) const THROTTLES: &str = "throttles are reqless's, and geartrain has none; the option <queue>-max-concurrency limits how many jobs of a queue run at once";
const BAD_NOW: &str = "Arg \"now\" missing or not a number: nil";

/// Decodes the arguments of a call, the command first; or returns Qless's error.
pub(super) fn decode(arguments: &[Bytes]) -> Result<(Call, CallContext), ErrorText> {
    let name = arguments.first().ok_or("Must provide a command")?;
    let command = command(name).ok_or_else(|| unknown_command(name))?;
    let now = arguments.get(1).and_then(|now| number::read(now)).ok_or(BAD_NOW)?;
    let now = Timestamp::new(now).map_err(|_| BAD_NOW)?;
    let (command, context) = command(Arguments(&arguments[2..]))?;
    Ok((Call::at(now, command), context))
}

/// The decoder of a command.
fn command(name: &[u8]) -> Option<fn(Arguments<'_>) -> Decoded> {
    Some(match name {
        b"put" => put,
        b"pop" => pop,
        b"complete" => complete,
        b"heartbeat" => heartbeat,
        b"cancel" => cancel,
        b"config.get" => config_get,
        b"config.set" => config_set,
        b"config.unset" => config_unset,
        b"depends" => depends,
        b"fail" => fail,
        b"failed" => failed,
        b"get" => get,
        b"jobs" => jobs,
        b"length" => length,
        b"log" => log,
        b"multiget" => multiget,
        b"pause" => pause,
        b"peek" => peek,
        b"priority" => priority,
        b"queue.forget" => queue_forget,
        b"queues" => queues,
        b"recur" => recur,
        b"recur.get" => recur_get,
        b"recur.tag" => recur_tag,
        b"recur.untag" => recur_untag,
        b"recur.update" => recur_update,
        b"requeue" => requeue,
        b"retry" => retry,
        b"stats" => stats,
        b"tag" => tag_command,
        b"timeout" => timeout,
        b"track" => track,
        b"unfail" => unfail,
        b"unpause" => unpause,
        b"unrecur" => unrecur,
        b"worker.deregister" => worker_deregister,
        b"workers" => workers,
        _ => return None,
    })
}

fn unknown_command(name: &[u8]) -> ErrorText {
    let unknown = format!("Unknown command {}", shown(name));
    if name.starts_with(b"throttle.") || name.starts_with(b"queue.throttle.") {
        return format!("{unknown}: {THROTTLES}");
    }
    unknown
}

fn decoded(command: impl Into<Command>, verb: Verb) -> Decoded {
    Ok((command.into(), CallContext { verb, echo: Echo::Nothing }))
}

fn decoded_with_echo(command: impl Into<Command>, verb: Verb, echo: Echo) -> Decoded {
    Ok((command.into(), CallContext { verb, echo }))
}

/// For a wrong argument that Qless checks after the job: reads the job, so that the right error can be
/// chosen.
fn check_job_first(command: impl Into<Command>, verb: Verb, jid: Jid, message: ErrorText) -> Decoded {
    decoded_with_echo(command, verb, Echo::Wrong { jid, message })
}

fn put(arguments: Arguments<'_>) -> Decoded {
    // The released Python client speaks an older Qless, whose put has no worker. Options are pairs, so the
    // number of arguments tells the two apart.
    let older = !arguments.0.len().is_multiple_of(2);
    let caller = if older { None } else { arguments.get(0) };
    match read_put(Arguments(arguments.rest(usize::from(!older))), caller, Existing::Replace) {
        Ok((put, jid)) => decoded_with_echo(put, Verb::Other, Echo::Text(jid)),
        Err(error) => Err(odd_options(arguments, older).unwrap_or(error)),
    }
}

/// The error about a put that is of the other form than its number of arguments says, because an option lacks
/// its value: there, and only there, a number for the delay is behind JSON.
fn odd_options(arguments: Arguments<'_>, older: bool) -> Option<ErrorText> {
    let is_number = |at| arguments.get(at).is_some_and(|delay| number::read(delay).is_some());
    let (delay, other_delay) = if older { (4, 5) } else { (5, 4) };
    let is_other =
        !is_number(delay) && is_number(other_delay) && arguments.get(other_delay - 1).is_some_and(is_json);
    if is_other { Options::new(arguments.rest(other_delay + 1)).err() } else { None }
}

fn requeue(arguments: Arguments<'_>) -> Decoded {
    let job = jid(arguments.need(2, NO_JID)?)?;
    match read_put(Arguments(arguments.rest(1)), arguments.get(0), Existing::Require) {
        Ok((put, echo)) => decoded_with_echo(put, Verb::Requeue, Echo::Text(echo)),
        Err(error) => check_job_first(Get { jid: job.clone() }, Verb::Requeue, job, error),
    }
}

/// Decodes `queue jid klass data delay [option value …]`.
fn read_put(
    arguments: Arguments<'_>,
    caller: Option<&Bytes>,
    existing: Existing,
) -> Result<(Put, Bytes), ErrorText> {
    // An empty worker name is no worker, and so is never the holder.
    let caller = caller.filter(|name| !name.is_empty()).map(|name| worker(name)).transpose()?;
    let in_queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let given = arguments.need(1, "Put(): Arg \"jid\" missing")?;
    let job = jid(given)?;
    let of_klass = klass(arguments.need(2, "Put(): Arg \"klass\" missing")?)?;
    let payload = data(
        arguments.need(3, "Put(): Arg \"data\" missing")?,
        "Put(): Arg \"data\" missing or not JSON: false",
    )?;
    let delay = seconds(arguments.number(4, "Put(): Arg \"delay\" not a number: ")?)?;
    let options = Options::new(arguments.rest(5))?;
    let retries = options.whole("retries", "Put(): Arg \"retries\" not a number: ")?;
    let tags = options.list("tags", tag)?;
    let priority = options.number("priority", "Put(): Arg \"priority\" not a number")?;
    let depends = options.list("depends", jid)?;
    let known = [retries.is_some(), tags.is_some(), priority.is_some(), depends.is_some()];
    options.check_names("Put()", &["priority", "tags", "retries", "depends"], &known)?;
    let put = Put {
        delay,
        retries,
        tags,
        priority: priority.map(read_priority).transpose()?,
        depends: depends.unwrap_or_default(),
        caller,
        existing,
        cycles: Cycles::Accept,
        ..Put::new(in_queue, job, of_klass, payload)
    };
    Ok((put, given.clone()))
}

fn read_priority(number: f64) -> Result<Priority, ErrorText> {
    Priority::new(number).map_err(|error| error.to_string())
}

fn complete(arguments: Arguments<'_>) -> Decoded {
    let job = jid(arguments.need(0, NO_JID)?)?;
    let by = worker(arguments.need(1, "Complete(): Arg \"worker\" missing")?)?;
    let in_queue = queue(arguments.need(2, "Complete(): Arg \"queue\" missing")?)?;
    let payload = data(
        arguments.need(3, "Complete(): Arg \"data\" missing or not JSON: nil")?,
        "Complete(): Arg \"data\" missing or not JSON: false",
    )?;
    let options = Options::lenient(arguments.rest(4));
    let delay = options.number("delay", "Complete(): Arg \"delay\" not a number: ")?;
    let depends = options.list("depends", jid)?;
    let next = options.get("next");
    let known = [delay.is_some(), depends.is_some(), next.is_some()];
    options.check_names("Complete()", &["next", "delay", "depends"], &known)?;
    if next.is_none() && delay.is_some() {
        return Err("Complete(): \"delay\" cannot be used without a \"next\".".to_owned());
    }
    if next.is_none() && depends.is_some() {
        return Err("Complete(): \"depends\" cannot be used without a \"next\".".to_owned());
    }
    let next = next.map(|next| {
        Ok::<_, ErrorText>(Next {
            delay: seconds(delay.unwrap_or_default())?,
            depends: depends.unwrap_or_default(),
            cycles: Cycles::Accept,
            ..Next::new(queue(next)?)
        })
    });
    let complete = Complete {
        queue: Some(in_queue),
        payload: Some(payload),
        next: next.transpose()?,
        ..Complete::new(job, Holder::Worker(by))
    };
    decoded(complete, Verb::Complete)
}

fn cancel(arguments: Arguments<'_>) -> Decoded {
    let jids = each(arguments.0, jid)?;
    decoded_with_echo(Cancel::new(jids), Verb::Other, Echo::Texts(arguments.0.to_vec()))
}

fn unfail(arguments: Arguments<'_>) -> Decoded {
    let queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let group = group(arguments.need(1, "Unfail(): Arg \"group\" missing")?)?;
    let count = arguments.count_or(2, Page::default().count, "Unfail(): Arg \"count\" not a number: ")?;
    decoded(Unfail { queue, group, count }, Verb::Other)
}

fn pop(arguments: Arguments<'_>) -> Decoded {
    let from = queue(arguments.need(0, NO_QUEUE)?)?;
    let by = worker(arguments.need(1, "Pop(): Arg \"worker\" missing")?)?;
    let count = arguments.count(2, "Pop(): Arg \"count\" missing or not a number: ")?;
    decoded(Pop { count, whole: true, ..Pop::new(from, by) }, Verb::Other)
}

fn peek(arguments: Arguments<'_>) -> Decoded {
    let queue = queue(arguments.need(0, NO_QUEUE)?)?;
    if arguments.get(2).is_some() {
        return Err("Peek(): takes a queue and a count; an offset before the count is reqless's, and geartrain has none".to_owned());
    }
    let count = arguments.count(1, "Peek(): Arg \"count\" missing or not a number: ")?;
    decoded(Peek { queue, count }, Verb::Other)
}

fn heartbeat(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_JID)?)?;
    let by = worker(arguments.need(1, "Heatbeat(): Arg \"worker\" missing")?)?;
    let payload = arguments.get(2).map(rewritten).transpose()?.flatten();
    decoded(Heartbeat { jid, holder: Holder::Worker(by), payload }, Verb::Heartbeat)
}

fn fail(arguments: Arguments<'_>) -> Decoded {
    let given = arguments.need(0, NO_JID)?;
    let job = jid(given)?;
    let by = worker(arguments.need(1, "Fail(): Arg \"worker\" missing")?)?;
    let of = group(arguments.need(2, "Fail(): Arg \"group\" missing")?)?;
    let message = text("a message", arguments.need(3, "Fail(): Arg \"message\" missing")?)?;
    let payload = arguments.get(4).map(rewritten).transpose()?.flatten();
    let fail = Fail { payload, ..Fail::new(job, Holder::Worker(by), of, message) };
    decoded_with_echo(fail, Verb::Fail, Echo::Text(given.clone()))
}

fn retry(arguments: Arguments<'_>) -> Decoded {
    let job = jid(arguments.need(0, NO_JID)?)?;
    let in_queue = queue(arguments.need(1, "Retry(): Arg \"queue\" missing")?)?;
    let by = worker(arguments.need(2, "Retry(): Arg \"worker\" missing")?)?;
    let delay = arguments.number_or(3, 0.0, "Retry(): Arg \"delay\" not a number: ")?;
    let of = arguments.get(4).map(|of| group(of)).transpose()?;
    let message = arguments.get(5).map(|message| text("a message", message).map(str::to_owned));
    let retry = Retry {
        queue: Some(in_queue),
        delay: seconds(delay)?,
        group: of,
        message: message.transpose()?,
        ..Retry::new(job, Holder::Worker(by))
    };
    decoded(retry, Verb::Retry)
}

fn timeout(arguments: Arguments<'_>) -> Decoded {
    decoded(Timeout { jids: each(arguments.0, jid)? }, Verb::Timeout)
}

fn priority(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_JID)?)?;
    let number = arguments.number(1, "Priority(): Arg \"priority\" missing or not a number: ")?;
    let set = SetPriority { jid, priority: read_priority(number)? };
    decoded_with_echo(set, Verb::Priority, Echo::Number(number))
}

fn depends(arguments: Arguments<'_>) -> Decoded {
    let job = jid(arguments.need(0, NO_JID)?)?;
    let word = arguments.need(1, "Depends(): Arg \"command\" missing")?;
    let others = arguments.rest(2);
    let change = match &word[..] {
        b"on" => DependChange::On(each(others, jid)?),
        b"off" if others.first().is_some_and(|all| all == "all") => DependChange::OffAll,
        b"off" => DependChange::Off(each(others, jid)?),
        _ => {
            let error = "Depends(): Argument \"command\" must be \"on\" or \"off\"".to_owned();
            return check_job_first(Get { jid: job.clone() }, Verb::Depends, job, error);
        }
    };
    decoded(Depend { jid: job, change, cycles: Cycles::Accept }, Verb::Depends)
}

fn log(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, "Log(): Argument 'jid' missing")?)?;
    let message = text("a message", arguments.need(1, "Log(): Argument 'message' missing")?)?.to_owned();
    let data = arguments.get(2).map(|data| fields(data)).transpose()?;
    decoded(Log { jid, message, data }, Verb::Log)
}

fn track(arguments: Arguments<'_>) -> Decoded {
    let Some(word) = arguments.get(0) else { return decoded(Tracked, Verb::Track) };
    let jid = jid(arguments.need(1, "Track(): Arg \"jid\" missing")?)?;
    let on = match &word.to_ascii_lowercase()[..] {
        b"track" => true,
        b"untrack" => false,
        _ => {
            let error = format!("Track(): Unknown action \"{}\"", shown(word));
            return check_job_first(Get { jid: jid.clone() }, Verb::Track, jid, error);
        }
    };
    decoded(Track { jid, on }, Verb::Track)
}

fn tag_command(arguments: Arguments<'_>) -> Decoded {
    let word = arguments.need(0, "Tag(): Arg \"command\" must be \"add\", \"remove\", \"get\" or \"top\"")?;
    let job = || jid(arguments.need(1, "Tag(): Arg \"jid\" missing")?);
    let page = |at| {
        arguments.page(at, "Tag(): Arg \"offset\" not a number: ", "Tag(): Arg \"count\" not a number: ")
    };
    match &word[..] {
        b"add" => decoded(AddTags { jid: job()?, tags: each(arguments.rest(2), tag)? }, Verb::Tag),
        b"remove" => decoded(RemoveTags { jid: job()?, tags: each(arguments.rest(2), tag)? }, Verb::Tag),
        b"get" => {
            let tag = tag(arguments.need(1, "Tag(): Arg \"tag\" missing")?)?;
            decoded(Tagged { tag, page: page(2)? }, Verb::Tag)
        }
        b"top" => decoded(TopTags { page: page(1)? }, Verb::Tag),
        _ => Err("Tag(): First argument must be \"add\", \"remove\" or \"get\"".to_owned()),
    }
}

fn get(arguments: Arguments<'_>) -> Decoded {
    decoded(Get { jid: jid(arguments.need(0, NO_JID)?)? }, Verb::Other)
}

fn multiget(arguments: Arguments<'_>) -> Decoded {
    decoded(GetMany { jids: each(arguments.0, jid)? }, Verb::Other)
}

fn length(arguments: Arguments<'_>) -> Decoded {
    decoded(Length { queue: queue(arguments.need(0, NO_QUEUE)?)? }, Verb::Other)
}

fn jobs(arguments: Arguments<'_>) -> Decoded {
    let page = |at| arguments.page(at, JOBS_OFFSET, JOBS_COUNT);
    let state = arguments.need(0, "Jobs(): Arg \"state\" missing")?;
    if state == "complete" {
        return decoded(Jobs { which: Listing::Complete, page: page(1)? }, Verb::Other);
    }
    let of = queue(arguments.need(1, "Jobs(): Arg \"queue\" missing")?)?;
    // Clients that stop all running jobs ask for -1 of them, which a Redis takes for all.
    let all =
        arguments.get(3).is_some_and(|count| count == "-1") && matches!(&state[..], b"running" | b"stalled");
    let page = if all {
        let offset = Arguments(&arguments.0[..3]).page(2, JOBS_OFFSET, JOBS_COUNT)?.offset;
        Page { offset, count: Count::MAX }
    } else {
        page(2)?
    };
    let which: fn(_) -> Listing = match &state[..] {
        b"running" => Listing::Running,
        b"stalled" => Listing::Stalled,
        b"scheduled" => Listing::Scheduled,
        b"depends" => Listing::Depends,
        b"recurring" => Listing::Recurring,
        _ => return Err(format!("Jobs(): Unknown type \"{}\"", shown(state))),
    };
    decoded(Jobs { which: which(of), page }, Verb::Other)
}

fn failed(arguments: Arguments<'_>) -> Decoded {
    let Some(of) = arguments.get(0) else { return decoded(Failures, Verb::Other) };
    let (start, limit) =
        ("Failed(): Arg \"start\" is not a number: ", "Failed(): Arg \"limit\" is not a number: ");
    decoded(Failed { group: group(of)?, page: arguments.page(1, start, limit)? }, Verb::Other)
}

fn queues(arguments: Arguments<'_>) -> Decoded {
    match arguments.get(0) {
        Some(one) => decoded_with_echo(Queues { queue: Some(queue(one)?) }, Verb::Other, Echo::One),
        None => decoded(Queues { queue: None }, Verb::Other),
    }
}

fn workers(arguments: Arguments<'_>) -> Decoded {
    match arguments.get(0) {
        Some(one) => decoded(WorkerJobs { worker: worker(one)? }, Verb::Other),
        None => decoded(Workers, Verb::Other),
    }
}

fn stats(arguments: Arguments<'_>) -> Decoded {
    let queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let date = arguments.number(1, "Stats(): Arg \"date\" missing or not a number: ")?;
    let date = Timestamp::new(date).map_err(|error| error.to_string())?;
    decoded(Stats { queue, date }, Verb::Other)
}

fn pause(arguments: Arguments<'_>) -> Decoded {
    decoded(Pause { queues: each(arguments.0, queue)? }, Verb::Other)
}

fn unpause(arguments: Arguments<'_>) -> Decoded {
    decoded(Resume { queues: each(arguments.0, queue)? }, Verb::Other)
}

fn queue_forget(arguments: Arguments<'_>) -> Decoded {
    decoded(ForgetQueues { queues: each(arguments.0, queue)? }, Verb::Other)
}

fn worker_deregister(arguments: Arguments<'_>) -> Decoded {
    decoded(ForgetWorkers { workers: each(arguments.0, worker)? }, Verb::Other)
}

fn config_get(arguments: Arguments<'_>) -> Decoded {
    match arguments.get(0) {
        Some(option) => decoded(GetConfig { option: text("an option", option)?.to_owned() }, Verb::Other),
        None => decoded(AllConfig, Verb::Other),
    }
}

fn config_set(arguments: Arguments<'_>) -> Decoded {
    let option = text("an option", arguments.need(0, "config.set(): Arg \"option\" missing")?)?.to_owned();
    let value = text("a value", arguments.need(1, "config.set(): Arg \"value\" missing")?)?.to_owned();
    decoded(SetConfig { option, value, any: true }, Verb::Other)
}

fn config_unset(arguments: Arguments<'_>) -> Decoded {
    let option = arguments.need(0, "config.unset(): Arg \"option\" missing")?;
    decoded(UnsetConfig { option: text("an option", option)?.to_owned() }, Verb::Other)
}

fn recur(arguments: Arguments<'_>) -> Decoded {
    let in_queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let given = arguments.need(1, "RecurringJob On(): Arg \"jid\" missing")?;
    let job = jid(given)?;
    let of_klass = klass(arguments.need(2, "RecurringJob On(): Arg \"klass\" missing")?)?;
    let spec = arguments.need(4, "RecurringJob On(): Arg \"spec\" missing")?;
    let payload = data(
        arguments.need(3, "RecurringJob On(): Arg \"data\" missing")?,
        "RecurringJob On(): Arg \"data\" not JSON: false",
    )?;
    if spec != "interval" {
        return Err(format!("Recur(): schedule type \"{}\" unknown", shown(spec)));
    }
    let interval = arguments.number(5, "Recur(): Arg \"interval\" not a number: ")?;
    let offset = seconds(arguments.number(6, "Recur(): Arg \"offset\" not a number: ")?)?;
    if interval <= 0.0 {
        return Err("Recur(): Arg \"interval\" must be greater than 0".to_owned());
    }
    let options = Options::new(arguments.rest(7))?;
    let tags = options.list("tags", tag)?;
    let priority = options.number("priority", "Recur(): Arg \"priority\" not a number: ")?;
    let retries = options.whole("retries", "Recur(): Arg \"retries\" not a number: ")?;
    let backlog = options.whole("backlog", "Recur(): Arg \"backlog\" not a number: ")?;
    let known = [tags.is_some(), priority.is_some(), retries.is_some(), backlog.is_some()];
    options.check_names("Recur()", &["priority", "tags", "retries", "backlog"], &known)?;
    let recur = Recur {
        offset,
        priority: read_priority(priority.unwrap_or_default())?,
        retries: retries.unwrap_or_default(),
        tags: tags.unwrap_or_default(),
        backlog: backlog.unwrap_or_default(),
        ..Recur::new(in_queue, job, of_klass, payload, seconds(interval)?)
    };
    decoded_with_echo(recur, Verb::Other, Echo::Text(given.clone()))
}

fn unrecur(arguments: Arguments<'_>) -> Decoded {
    decoded(Unrecur { jid: jid(arguments.need(0, NO_RECURRING)?)? }, Verb::Other)
}

fn recur_get(arguments: Arguments<'_>) -> Decoded {
    decoded(GetRecurring { jid: jid(arguments.need(0, NO_RECURRING)?)? }, Verb::Other)
}

fn recur_tag(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_RECURRING)?)?;
    decoded(TagRecurring { jid, tags: each(arguments.rest(1), tag)? }, Verb::RecurTag)
}

fn recur_untag(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_RECURRING)?)?;
    decoded(UntagRecurring { jid, tags: each(arguments.rest(1), tag)? }, Verb::RecurUntag)
}

fn recur_update(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_RECURRING)?)?;
    match read_update(jid.clone(), arguments.rest(1)) {
        Ok(update) => decoded(update, Verb::RecurUpdate),
        Err(error) => check_job_first(GetRecurring { jid: jid.clone() }, Verb::RecurUpdate, jid, error),
    }
}

fn read_update(jid: Jid, words: &[Bytes]) -> Result<UpdateRecurring, ErrorText> {
    let mut update = UpdateRecurring::new(jid);
    for pair in words.chunks(2) {
        let name = shown(&pair[0]);
        let value = pair.get(1).ok_or_else(|| format!("No value provided for {name}"))?;
        let error = format!("Recur(): Arg \"{name}\" must be a number: ");
        let number = || read_number(Some(value), &error);
        match &name[..] {
            "priority" => update.priority = Some(read_priority(number()?)?),
            "retries" => update.retries = Some(read_whole("retries", value, &error)?),
            "interval" => update.every = Some(Every::Interval(seconds(number()?)?)),
            "backlog" => {
                let error = "Recur(): Arg \"backlog\" not a number: ";
                update.backlog = Some(read_whole("backlog", value, error)?);
            }
            "data" => {
                let error = "Recur(): Arg \"data\" is not JSON-encoded: false";
                update.payload = Some(data(value, error)?);
            }
            "klass" => update.klass = Some(klass(value)?),
            "queue" => update.queue = Some(queue(value)?),
            "throttles" => return Err(format!("Recur(): Unrecognized option \"{name}\": {THROTTLES}")),
            _ => return Err(format!("Recur(): Unrecognized option \"{name}\"")),
        }
    }
    Ok(update)
}
