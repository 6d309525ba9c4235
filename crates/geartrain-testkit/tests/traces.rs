//! Random traces: what they cover, and the names of their tokens.

use geartrain_core::{
    Command, Get, Heartbeat, Holder, Jid, JobState, Klass, Pop, Put, QueueName, Reply, Timestamp, Token,
    WorkerName,
};
use geartrain_testkit::model::Model;
use geartrain_testkit::trace::{Coverage, Tokens, generate, limits};

#[test]
fn traces_cover_every_command_and_every_refusal() {
    let mut coverage = Coverage::default();
    for seed in 0..400 {
        let (mut model, mut tokens) = (Model::new(limits()), Tokens::default());
        for step in generate(seed) {
            let (answer, events) = model.run(step.now, &tokens.command(&step.command));
            tokens.learn(step.number, &answer);
            coverage.count(&step.command, &answer, &events, model.deliveries());
        }
    }
    assert_eq!(coverage.missing(50), Vec::<&str>::new(), "{coverage}");
}

#[test]
fn a_token_is_known_by_the_step_that_gave_it() {
    let (mut model, mut tokens) = (Model::default(), Tokens::default());
    let (queue, jid) = (QueueName::new("q").unwrap(), Jid::new("a").unwrap());
    let put = Put::new(queue.clone(), jid.clone(), Klass::new("k").unwrap(), "{}");
    assert!(model.run(Timestamp::ZERO, &put.into()).0.is_ok());
    let (answer, _) = model.run(Timestamp::ZERO, &Pop::new(queue, WorkerName::new("w").unwrap()).into());
    tokens.learn(7, &answer);
    let Ok(Reply::Pop(reply)) = &answer else { panic!("{answer:?}") };
    let given = reply.jobs[0].lock.token;

    let heartbeat =
        |token| Command::from(Heartbeat { jid: jid.clone(), holder: Holder::Token(token), payload: None });
    assert_eq!(tokens.command(&heartbeat(Tokens::name(7, 0))), heartbeat(given));
    assert_eq!(tokens.command(&heartbeat(Token::new(3))), heartbeat(Token::new(u64::MAX - 3)));

    let (answer, _) = model.run(Timestamp::ZERO, &Get { jid: jid.clone() }.into());
    let Ok(Reply::Get(Some(job))) = tokens.answer(answer) else { panic!("it is there") };
    let JobState::Running { lock } = job.state else { panic!("it runs") };
    assert_eq!(lock.token, Tokens::name(7, 0));
}
