//! What is left of a cancelled job, for commands that do not find it.

use geartrain::{Canceled, Client, Jid, Refusal, StateName, Timestamp, Tombstone};

use crate::failure::Failure;
use crate::output::Output;
use crate::text::clean;
use crate::timestamp;
use geartrain_json::TombstoneView;

/// Why a job is not there: it was cancelled, or there is no such job. In JSON the tombstone is printed as well.
pub(super) async fn explain(client: &Client, jid: &Jid, out: &mut Output<'_>) -> Failure {
    // A server from before there were tombstones cannot answer.
    let Ok(Some(tombstone)) = client.run(Canceled { jid: jid.clone() }).await else {
        return Refusal::NoSuchJob { jid: jid.clone() }.into();
    };
    if out.json
        && let Err(error) = out.line(&TombstoneView::new(&tombstone), "")
    {
        return error.into();
    }
    Failure::Refused(sentence(&tombstone, out.now))
}

fn sentence(of: &Tombstone, now: Timestamp) -> String {
    let when = match timestamp::relative(of.when, now).as_str() {
        "now" => "just now".to_owned(),
        when => when.to_owned(),
    };
    let mut text = format!("job {} was cancelled {when}", of.jid);
    if let Some(by) = &of.by {
        text += &format!(" by {}", clean(by));
    }
    if let Some(because) = of.because.as_deref().filter(|because| !because.is_empty()) {
        text += &format!(", because {}", clean(because));
    }
    match of.state {
        StateName::Depends => format!("{text}; it depended on others, in queue {}", of.queue),
        state => format!("{text}; it was {state} in queue {}", of.queue),
    }
}

/// `<user>@<host>`, for the tombstones of jobs that this command cancels.
pub(super) fn caller() -> String {
    let variable = |name| std::env::var(name).ok().filter(|user| !user.is_empty());
    let user = ["USER", "LOGNAME"].into_iter().find_map(variable).unwrap_or_else(|| {
        // Services and containers often run without these variables.
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        user_name(&users, rustix::process::getuid().as_raw())
    });
    format!("{user}@{}", gethostname::gethostname().to_string_lossy())
}

/// The name of a user in the text of `/etc/passwd`, or `uid-1000`.
fn user_name(users: &str, uid: u32) -> String {
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _password, id) = (fields.next()?, fields.next()?, fields.next()?);
        (!name.is_empty() && id.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("uid-{uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_a_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\n\nbroken\nana:x:1000:1000::/home/ana:/bin/sh\n";
        assert_eq!(user_name(users, 1_000), "ana");
        assert_eq!(user_name(users, 1_001), "uid-1001");
        assert_eq!(user_name("", 0), "uid-0");
    }
}
