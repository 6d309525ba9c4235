//! Qless's commands, one function for each: what it checks, in its order, and the command of ours that does it.

use bytes::Bytes;
use geartrain_core::{
    AddTags, AllConfig, Call, Cancel, Command, Complete, Cycles, Depend, DependChange, Every, Existing, Fail,
    Failed, Failures, ForgetQueues, ForgetWorkers, Get, GetConfig, GetMany, GetRecurring, Heartbeat, Holder,
    Jid, Jobs, Length, Listing, Log, Next, Page, Pause, Peek, Pop, Priority, Put, Queues, Recur, RemoveTags,
    Resume, Retry, SetConfig, SetPriority, Stats, TagRecurring, Tagged, Timeout, Timestamp, TopTags, Track,
    Tracked, Unfail, Unrecur, UnsetConfig, UntagRecurring, UpdateRecurring, WorkerJobs, Workers,
};

use super::arguments::{
    Arguments, Complaint, Options, data, each, fields, group, jid, klass, queue, read_number, read_whole,
    rewritten, seconds, shown, tag, text, worker,
};
use super::{Asked, Echo, Verb, number};

type Decoded = Result<(Command, Asked), Complaint>;

const NO_QUEUE: &str = "Queue(): no queue name provided";
const NO_JID: &str = "Job(): no jid provided";
const NO_RECURRING: &str = "Recurring(): no jid provided";
const BAD_NOW: &str = "Arg \"now\" missing or not a number: nil";

/// Turns a call's arguments, which begin with the command, into a call of ours; or says what is wrong with them.
pub(super) fn decode(arguments: &[Bytes]) -> Result<(Call, Asked), Complaint> {
    let name = arguments.first().ok_or("Must provide a command")?;
    let command = command(name).ok_or_else(|| format!("Unknown command {}", shown(name)))?;
    let now = arguments.get(1).and_then(|now| number::read(now)).ok_or(BAD_NOW)?;
    let now = Timestamp::new(now).map_err(|_| BAD_NOW)?;
    let (command, asked) = command(Arguments(&arguments[2..]))?;
    Ok((Call { now: Some(now), command }, asked))
}

/// What reads the arguments of this command.
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
        b"tag" => tag_words,
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

fn ask(command: impl Into<Command>, verb: Verb) -> Decoded {
    Ok((command.into(), Asked { verb, echo: Echo::Nothing }))
}

fn ask_echo(command: impl Into<Command>, verb: Verb, echo: Echo) -> Decoded {
    Ok((command.into(), Asked { verb, echo }))
}

/// An argument is wrong, but Qless looks at the job first: looks it up, so that the right complaint can be chosen.
fn look_first(command: impl Into<Command>, verb: Verb, jid: Jid, message: Complaint) -> Decoded {
    ask_echo(command, verb, Echo::Wrong { jid, message })
}

fn put(arguments: Arguments<'_>) -> Decoded {
    // The released Python client speaks an older Qless, which does not say who puts. The number of arguments tells them apart, because options are pairs.
    let older = !arguments.0.len().is_multiple_of(2);
    let caller = if older { None } else { arguments.get(0) };
    let (put, jid) = read_put(Arguments(arguments.rest(usize::from(!older))), caller, Existing::Replace)?;
    ask_echo(put, Verb::Other, Echo::Text(jid))
}

fn requeue(arguments: Arguments<'_>) -> Decoded {
    let job = jid(arguments.need(2, NO_JID)?)?;
    match read_put(Arguments(arguments.rest(1)), arguments.get(0), Existing::Require) {
        Ok((put, echo)) => ask_echo(put, Verb::Requeue, Echo::Text(echo)),
        Err(complaint) => look_first(Get { jid: job.clone() }, Verb::Requeue, job, complaint),
    }
}

/// Reads `queue jid klass data delay [option value …]`.
fn read_put(
    arguments: Arguments<'_>,
    caller: Option<&Bytes>,
    existing: Existing,
) -> Result<(Put, Bytes), Complaint> {
    // Nobody is called nothing, and a holder that is called something differs from that.
    let caller = caller.filter(|name| !name.is_empty()).map(|name| worker(name)).transpose()?;
    let in_queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let given = arguments.need(1, "Put(): Arg \"jid\" missing")?;
    let job = jid(given)?;
    let of_klass = klass(arguments.need(2, "Put(): Arg \"klass\" missing")?)?;
    let json = arguments.need(3, "Put(): Arg \"data\" missing")?;
    if json.trim_ascii() == b"false" {
        return Err("Put(): Arg \"data\" missing or not JSON: false".to_owned());
    }
    let payload = data(json)?;
    let delay = seconds(arguments.number(4, "Put(): Arg \"delay\" not a number: ")?)?;
    let options = Options::new(arguments.rest(5))?;
    let put = Put {
        delay,
        retries: options.whole("retries", "Put(): Arg \"retries\" not a number: ")?,
        tags: options.list("tags", tag)?,
        priority: options
            .number("priority", "Put(): Arg \"priority\" not a number")?
            .map(read_priority)
            .transpose()?,
        depends: options.list("depends", jid)?.unwrap_or_default(),
        caller,
        existing,
        cycles: Cycles::Accept,
        ..Put::new(in_queue, job, of_klass, payload)
    };
    Ok((put, given.clone()))
}

fn read_priority(number: f64) -> Result<Priority, Complaint> {
    Priority::new(number).map_err(|error| error.to_string())
}

fn complete(arguments: Arguments<'_>) -> Decoded {
    let job = jid(arguments.need(0, NO_JID)?)?;
    let by = worker(arguments.need(1, "Complete(): Arg \"worker\" missing")?)?;
    let in_queue = queue(arguments.need(2, "Complete(): Arg \"queue\" missing")?)?;
    let payload = data(arguments.need(3, "Complete(): Arg \"data\" missing or not JSON: nil")?)?;
    let options = Options::lenient(arguments.rest(4));
    let delay = options.number("delay", "Complete(): Arg \"delay\" not a number: ")?;
    let depends = options.list("depends", jid)?;
    let next = options.get("next");
    if next.is_none() && delay.is_some() {
        return Err("Complete(): \"delay\" cannot be used without a \"next\".".to_owned());
    }
    if next.is_none() && depends.is_some() {
        return Err("Complete(): \"depends\" cannot be used without a \"next\".".to_owned());
    }
    let next = next.map(|next| {
        Ok::<_, Complaint>(Next {
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
    ask(complete, Verb::Complete)
}

fn cancel(arguments: Arguments<'_>) -> Decoded {
    let jids = each(arguments.0, jid)?;
    ask_echo(Cancel { jids }, Verb::Other, Echo::Texts(arguments.0.to_vec()))
}

fn unfail(arguments: Arguments<'_>) -> Decoded {
    let queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let group = group(arguments.need(1, "Unfail(): Arg \"group\" missing")?)?;
    let count = arguments.count_or(2, Page::default().count, "Unfail(): Arg \"count\" not a number: ")?;
    ask(Unfail { queue, group, count }, Verb::Other)
}

fn pop(arguments: Arguments<'_>) -> Decoded {
    let from = queue(arguments.need(0, NO_QUEUE)?)?;
    let by = worker(arguments.need(1, "Pop(): Arg \"worker\" missing")?)?;
    let count = arguments.count(2, "Pop(): Arg \"count\" missing or not a number: ")?;
    ask(Pop { count, whole: true, ..Pop::new(from, by) }, Verb::Other)
}

fn peek(arguments: Arguments<'_>) -> Decoded {
    let queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let count = arguments.count(1, "Peek(): Arg \"count\" missing or not a number: ")?;
    ask(Peek { queue, count }, Verb::Other)
}

fn heartbeat(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_JID)?)?;
    let by = worker(arguments.need(1, "Heatbeat(): Arg \"worker\" missing")?)?;
    let payload = arguments.get(2).map(rewritten).transpose()?;
    ask(Heartbeat { jid, holder: Holder::Worker(by), payload }, Verb::Heartbeat)
}

fn fail(arguments: Arguments<'_>) -> Decoded {
    let given = arguments.need(0, NO_JID)?;
    let job = jid(given)?;
    let by = worker(arguments.need(1, "Fail(): Arg \"worker\" missing")?)?;
    let of = group(arguments.need(2, "Fail(): Arg \"group\" missing")?)?;
    let message = text("a message", arguments.need(3, "Fail(): Arg \"message\" missing")?)?;
    let payload = arguments.get(4).map(rewritten).transpose()?;
    let fail = Fail { payload, ..Fail::new(job, Holder::Worker(by), of, message) };
    ask_echo(fail, Verb::Fail, Echo::Text(given.clone()))
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
    ask(retry, Verb::Retry)
}

fn timeout(arguments: Arguments<'_>) -> Decoded {
    ask(Timeout { jids: each(arguments.0, jid)? }, Verb::Timeout)
}

fn priority(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_JID)?)?;
    let number = arguments.number(1, "Priority(): Arg \"priority\" missing or not a number: ")?;
    let set = SetPriority { jid, priority: read_priority(number)? };
    ask_echo(set, Verb::Priority, Echo::Number(number))
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
            let complaint = "Depends(): Argument \"command\" must be \"on\" or \"off\"".to_owned();
            return look_first(Get { jid: job.clone() }, Verb::Depends, job, complaint);
        }
    };
    ask(Depend { jid: job, change, cycles: Cycles::Accept }, Verb::Depends)
}

fn log(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, "Log(): Argument 'jid' missing")?)?;
    let message = text("a message", arguments.need(1, "Log(): Argument 'message' missing")?)?.to_owned();
    let data = arguments.get(2).map(|data| fields(data)).transpose()?;
    ask(Log { jid, message, data }, Verb::Log)
}

fn track(arguments: Arguments<'_>) -> Decoded {
    let Some(word) = arguments.get(0) else { return ask(Tracked, Verb::Track) };
    let jid = jid(arguments.need(1, "Track(): Arg \"jid\" missing")?)?;
    let on = match &word.to_ascii_lowercase()[..] {
        b"track" => true,
        b"untrack" => false,
        _ => {
            let complaint = format!("Track(): Unknown action \"{}\"", shown(word));
            return look_first(Get { jid: jid.clone() }, Verb::Track, jid, complaint);
        }
    };
    ask(Track { jid, on }, Verb::Track)
}

fn tag_words(arguments: Arguments<'_>) -> Decoded {
    let word = arguments.need(0, "Tag(): Arg \"command\" must be \"add\", \"remove\", \"get\" or \"top\"")?;
    let job = || jid(arguments.need(1, "Tag(): Arg \"jid\" missing")?);
    let page = |at| {
        arguments.page(at, "Tag(): Arg \"offset\" not a number: ", "Tag(): Arg \"count\" not a number: ")
    };
    match &word[..] {
        b"add" => ask(AddTags { jid: job()?, tags: each(arguments.rest(2), tag)? }, Verb::Tag),
        b"remove" => ask(RemoveTags { jid: job()?, tags: each(arguments.rest(2), tag)? }, Verb::Tag),
        b"get" => {
            let tag = tag(arguments.need(1, "Tag(): Arg \"tag\" missing")?)?;
            ask(Tagged { tag, page: page(2)? }, Verb::Tag)
        }
        b"top" => ask(TopTags { page: page(1)? }, Verb::Tag),
        _ => Err("Tag(): First argument must be \"add\", \"remove\" or \"get\"".to_owned()),
    }
}

fn get(arguments: Arguments<'_>) -> Decoded {
    ask(Get { jid: jid(arguments.need(0, NO_JID)?)? }, Verb::Other)
}

fn multiget(arguments: Arguments<'_>) -> Decoded {
    ask(GetMany { jids: each(arguments.0, jid)? }, Verb::Other)
}

fn length(arguments: Arguments<'_>) -> Decoded {
    ask(Length { queue: queue(arguments.need(0, NO_QUEUE)?)? }, Verb::Other)
}

fn jobs(arguments: Arguments<'_>) -> Decoded {
    let page = |at| {
        arguments.page(at, "Jobs(): Arg \"offset\" not a number: ", "Jobs(): Arg \"count\" not a number: ")
    };
    let state = arguments.need(0, "Jobs(): Arg \"state\" missing")?;
    if state == "complete" {
        return ask(Jobs { which: Listing::Complete, page: page(1)? }, Verb::Other);
    }
    let of = queue(arguments.need(1, "Jobs(): Arg \"queue\" missing")?)?;
    let page = page(2)?;
    let which: fn(_) -> Listing = match &state[..] {
        b"running" => Listing::Running,
        b"stalled" => Listing::Stalled,
        b"scheduled" => Listing::Scheduled,
        b"depends" => Listing::Depends,
        b"recurring" => Listing::Recurring,
        _ => return Err(format!("Jobs(): Unknown type \"{}\"", shown(state))),
    };
    ask(Jobs { which: which(of), page }, Verb::Other)
}

fn failed(arguments: Arguments<'_>) -> Decoded {
    let Some(of) = arguments.get(0) else { return ask(Failures, Verb::Other) };
    let (start, limit) =
        ("Failed(): Arg \"start\" is not a number: ", "Failed(): Arg \"limit\" is not a number: ");
    ask(Failed { group: group(of)?, page: arguments.page(1, start, limit)? }, Verb::Other)
}

fn queues(arguments: Arguments<'_>) -> Decoded {
    match arguments.get(0) {
        Some(one) => ask_echo(Queues { queue: Some(queue(one)?) }, Verb::Other, Echo::One),
        None => ask(Queues { queue: None }, Verb::Other),
    }
}

fn workers(arguments: Arguments<'_>) -> Decoded {
    match arguments.get(0) {
        Some(one) => ask(WorkerJobs { worker: worker(one)? }, Verb::Other),
        None => ask(Workers, Verb::Other),
    }
}

fn stats(arguments: Arguments<'_>) -> Decoded {
    let queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let date = arguments.number(1, "Stats(): Arg \"date\" missing or not a number: ")?;
    let date = Timestamp::new(date).map_err(|error| error.to_string())?;
    ask(Stats { queue, date }, Verb::Other)
}

fn pause(arguments: Arguments<'_>) -> Decoded {
    ask(Pause { queues: each(arguments.0, queue)? }, Verb::Other)
}

fn unpause(arguments: Arguments<'_>) -> Decoded {
    ask(Resume { queues: each(arguments.0, queue)? }, Verb::Other)
}

fn queue_forget(arguments: Arguments<'_>) -> Decoded {
    ask(ForgetQueues { queues: each(arguments.0, queue)? }, Verb::Other)
}

fn worker_deregister(arguments: Arguments<'_>) -> Decoded {
    ask(ForgetWorkers { workers: each(arguments.0, worker)? }, Verb::Other)
}

fn config_get(arguments: Arguments<'_>) -> Decoded {
    match arguments.get(0) {
        Some(option) => ask(GetConfig { option: text("an option", option)?.to_owned() }, Verb::Other),
        None => ask(AllConfig, Verb::Other),
    }
}

fn config_set(arguments: Arguments<'_>) -> Decoded {
    let option = text("an option", arguments.need(0, "config.set(): Arg \"option\" missing")?)?.to_owned();
    let value = text("a value", arguments.need(1, "config.set(): Arg \"value\" missing")?)?.to_owned();
    ask(SetConfig { option, value }, Verb::Other)
}

fn config_unset(arguments: Arguments<'_>) -> Decoded {
    let option = arguments.need(0, "config.unset(): Arg \"option\" missing")?;
    ask(UnsetConfig { option: text("an option", option)?.to_owned() }, Verb::Other)
}

fn recur(arguments: Arguments<'_>) -> Decoded {
    let in_queue = queue(arguments.need(0, NO_QUEUE)?)?;
    let given = arguments.need(1, "RecurringJob On(): Arg \"jid\" missing")?;
    let job = jid(given)?;
    let of_klass = klass(arguments.need(2, "RecurringJob On(): Arg \"klass\" missing")?)?;
    let spec = arguments.need(4, "RecurringJob On(): Arg \"spec\" missing")?;
    let payload = data(arguments.need(3, "RecurringJob On(): Arg \"data\" missing")?)?;
    if spec != "interval" {
        return Err(format!("Recur(): schedule type \"{}\" unknown", shown(spec)));
    }
    let interval = arguments.number(5, "Recur(): Arg \"interval\" not a number: ")?;
    let offset = seconds(arguments.number(6, "Recur(): Arg \"offset\" not a number: ")?)?;
    if interval <= 0.0 {
        return Err("Recur(): Arg \"interval\" must be greater than 0".to_owned());
    }
    let options = Options::new(arguments.rest(7))?;
    let tags = options.list("tags", tag)?.unwrap_or_default();
    let priority = options.number("priority", "Recur(): Arg \"priority\" not a number: ")?;
    let retries = options.whole("retries", "Recur(): Arg \"retries\" not a number: ")?;
    let backlog = options.whole("backlog", "Recur(): Arg \"backlog\" not a number: ")?;
    let recur = Recur {
        offset,
        priority: read_priority(priority.unwrap_or_default())?,
        retries: retries.unwrap_or_default(),
        tags,
        backlog: backlog.unwrap_or_default(),
        ..Recur::new(in_queue, job, of_klass, payload, seconds(interval)?)
    };
    ask_echo(recur, Verb::Other, Echo::Text(given.clone()))
}

fn unrecur(arguments: Arguments<'_>) -> Decoded {
    ask(Unrecur { jid: jid(arguments.need(0, NO_RECURRING)?)? }, Verb::Other)
}

fn recur_get(arguments: Arguments<'_>) -> Decoded {
    ask(GetRecurring { jid: jid(arguments.need(0, NO_RECURRING)?)? }, Verb::Other)
}

fn recur_tag(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_RECURRING)?)?;
    ask(TagRecurring { jid, tags: each(arguments.rest(1), tag)? }, Verb::RecurTag)
}

fn recur_untag(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_RECURRING)?)?;
    ask(UntagRecurring { jid, tags: each(arguments.rest(1), tag)? }, Verb::RecurUntag)
}

fn recur_update(arguments: Arguments<'_>) -> Decoded {
    let jid = jid(arguments.need(0, NO_RECURRING)?)?;
    match read_update(jid.clone(), arguments.rest(1)) {
        Ok(update) => ask(update, Verb::RecurUpdate),
        Err(complaint) => look_first(GetRecurring { jid: jid.clone() }, Verb::RecurUpdate, jid, complaint),
    }
}

fn read_update(jid: Jid, words: &[Bytes]) -> Result<UpdateRecurring, Complaint> {
    let mut update = UpdateRecurring::new(jid);
    for pair in words.chunks(2) {
        let name = shown(&pair[0]);
        let value = pair.get(1).ok_or_else(|| format!("No value provided for {name}"))?;
        let complaint = format!("Recur(): Arg \"{name}\" must be a number: ");
        let number = || read_number(Some(value), &complaint);
        match &name[..] {
            "priority" => update.priority = Some(read_priority(number()?)?),
            "retries" => update.retries = Some(read_whole("retries", value, &complaint)?),
            "interval" => update.every = Some(Every::Interval(seconds(number()?)?)),
            "backlog" => {
                let complaint = "Recur(): Arg \"backlog\" not a number: ";
                update.backlog = Some(read_whole("backlog", value, complaint)?);
            }
            "data" => update.payload = Some(data(value)?),
            "klass" => update.klass = Some(klass(value)?),
            "queue" => update.queue = Some(queue(value)?),
            _ => return Err(format!("Recur(): Unrecognized option \"{name}\"")),
        }
    }
    Ok(update)
}
