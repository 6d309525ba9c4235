//! Options.

use geartrain_core::{
    AllConfig, BadArgument, BadInput, OPTIONS, OptionInfo, OptionScope, Role, SetConfig, UnsetConfig,
};

use super::{FieldInfo, FieldKind, OperationInfo, Plan, Queue, document};
use crate::object::missing;
use crate::time::Times;
use crate::{Object, OperationError, OptionView};

const KEY: FieldInfo =
    FieldInfo::required("key", FieldKind::LongName, "The name, such as heartbeat or mail-heartbeat");

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "config",
        access: Role::Viewer,
        meaning: "Shows all options, or one.",
        fields: &[FieldInfo::new("key", FieldKind::LongName, "The name of an option")],
        read: config,
    },
    OperationInfo {
        name: "set-config",
        access: Role::Admin,
        meaning: "Sets an option.",
        fields: &[
            KEY,
            FieldInfo::required("value", FieldKind::OptionValue, "Its new value"),
            FieldInfo::new("any", FieldKind::Flag, "Accepts a name that geartrain does not know"),
        ],
        read: set_config,
    },
    OperationInfo {
        name: "unset-config",
        access: Role::Admin,
        meaning: "Resets an option to its default.",
        fields: &[KEY],
        read: unset_config,
    },
];

/// The names of all options; `QUEUE-max-concurrency` stands for any queue.
pub fn option_keys() -> impl Iterator<Item = String> {
    OPTIONS.iter().map(|option| match option.scope {
        OptionScope::Queue => format!("QUEUE-{}", option.name),
        OptionScope::Global | OptionScope::Both => option.name.to_owned(),
    })
}

fn config(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let key = object.text("key")?;
    Plan::command(AllConfig, move |settings, _| {
        if let Some(key) = key {
            if OptionInfo::find(&key).is_none() && !settings.contains_key(&key) {
                return Err(no_such_option(&key));
            }
            return document(&OptionView::new(&key, &settings));
        }
        let mut keys: Vec<String> = option_keys().collect();
        let others: Vec<String> = settings.keys().filter(|key| !keys.contains(key)).cloned().collect();
        keys.extend(others);
        document(&keys.iter().map(|key| OptionView::new(key, &settings)).collect::<Vec<_>>())
    })
}

fn no_such_option(key: &str) -> OperationError {
    OperationError {
        help: Some("list the options to see which exist".to_owned()),
        ..OperationError::new("no-such-option", format!("there is no option {:?}", crate::excerpt(key)))
    }
}

async fn show(queue: Queue, key: String) -> super::Outcome {
    document(&OptionView::new(&key, &queue.run(AllConfig).await?))
}

fn key(object: &Object<'_>) -> Result<String, OperationError> {
    object.text("key")?.ok_or_else(|| missing("key"))
}

fn set_config(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let key = key(object)?;
    let value = match object.raw("value").map(|value| value.get()) {
        None => return Err(missing("value")),
        // Most options are numbers.
        Some(number) if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => number.to_owned(),
        Some(_) => object.text("value")?.unwrap_or_default(),
    };
    match OptionInfo::find(&key) {
        Some((option, _)) => option.check(&value).map_err(|error: BadArgument| BadInput::from(error))?,
        None if !object.flag("any")? => return Err(no_such_option(&key)),
        None => {}
    }
    let set = SetConfig { any: OptionInfo::find(&key).is_none(), ..SetConfig::new(&key, value) };
    Plan::steps(move |queue| async move {
        queue.run(set).await?;
        show(queue, key).await
    })
}

fn unset_config(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let key = key(object)?;
    Plan::steps(move |queue| async move {
        queue.run(UnsetConfig { option: key.clone() }).await?;
        show(queue, key).await
    })
}
