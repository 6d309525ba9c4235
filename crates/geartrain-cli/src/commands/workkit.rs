//! WorkKit schedules: the flags that only they have, `put --nonce` and `work --all`.

use std::sync::Arc;

use geartrain::{Client, Error, Klass, Target, WorkKitBackend, WorkKitUrl};

use crate::failure::Failure;

/// Connects to the schedules of a URL, changed as a flag says.
pub(super) async fn connect(
    url: &str,
    flag: &str,
    change: fn(WorkKitUrl) -> WorkKitUrl,
) -> Result<Client, Failure> {
    let Target::WorkKit(url) = Target::of(url)? else {
        return Err(Failure::Usage(format!(
            "{flag} is for WorkKit schedules: give --url workkit+redis://HOST:PORT"
        )));
    };
    match WorkKitBackend::connect(change(url.clone())).await {
        Ok(backend) => Ok(Client::new(Arc::new(backend))),
        Err(source) => Err(Error::Connect { url: url.to_string(), source }.into()),
    }
}

/// Refuses a worker that does not say which functions it can run: others would be taken from listeners that can.
pub(super) fn check_klasses(target: &Target, klasses: &[Klass], all: bool) -> Result<(), Failure> {
    match target {
        Target::WorkKit(url) if klasses.is_empty() && !all && !url.takes_all() => Err(Failure::Usage(
            "name the functions to run with --klass, or take all named functions with --all".to_owned(),
        )),
        Target::WorkKit(_) => Ok(()),
        _ if all => Err(Failure::Usage(
            "--all is for WorkKit schedules; elsewhere all klasses are taken unless --klass is given"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}
