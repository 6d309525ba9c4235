//! A command takes a bounded number of steps of dependency policies. A store ticks at once, so only the bare
//! engine shows it.

use geartrain_core::engine::{Effects, Engine, Limits};
use geartrain_core::{
    Command, Count, DependencyPolicy, Fail, Failures, Group, Holder, Jid, Klass, Pop, Put, PutOptions,
    QueueName, Reply, Tick, Timestamp, WorkerName,
};

fn run(engine: &mut Engine, command: impl Into<Command>) -> Reply {
    engine.execute(Timestamp::from(1), command.into(), &mut Effects::default()).unwrap()
}

fn failed_upstream(engine: &mut Engine) -> Option<u64> {
    let Reply::Failures(groups) = run(engine, Failures) else { panic!("expected groups") };
    groups.get(&Group::new("upstream-q").unwrap()).copied()
}

#[test]
fn a_command_fails_a_hundred_dependents_and_ticks_the_rest() {
    let mut engine = Engine::new(Limits::default());
    let jid = |name: &str| Jid::new(name).unwrap();
    let queue = || QueueName::new("q").unwrap();
    let put = |name: &str| Put::new(queue(), jid(name), Klass::new("k").unwrap(), "{}");
    run(&mut engine, put("cause"));
    let Reply::Pop(popped) = run(&mut engine, Pop::new(queue(), WorkerName::new("w").unwrap())) else {
        panic!("expected a job")
    };
    for number in 0..250 {
        let fails = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
        let dependent = put(&format!("x{number:03}"));
        let options = Some(Box::new(fails));
        run(&mut engine, Put { depends: vec![jid("cause")], options, ..dependent });
    }
    let holder = Holder::Token(popped.jobs[0].lock.token);
    run(&mut engine, Fail::new(jid("cause"), holder, Group::new("g").unwrap(), "oops"));
    assert_eq!(failed_upstream(&mut engine), Some(100));
    run(&mut engine, Tick { count: Count::new(30).unwrap() });
    let after_a_tick = failed_upstream(&mut engine);
    assert!(after_a_tick > Some(100) && after_a_tick < Some(250), "{after_a_tick:?}");
    for _ in 0..10 {
        run(&mut engine, Tick { count: Count::new(30).unwrap() });
    }
    assert_eq!(failed_upstream(&mut engine), Some(250));
}
