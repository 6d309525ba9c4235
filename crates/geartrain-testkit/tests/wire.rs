//! What is read and written fast on the wire is what serde reads and writes: of answers byte for byte;
//! requests are written in runs, and read either way.

use geartrain_core::wire::{self, Request};
use geartrain_core::{Answer, Call};
use geartrain_testkit::model::Model;
use geartrain_testkit::trace::{Step, Tokens, generate, limits};

#[test]
fn every_command_and_answer_of_many_traces_is_the_same_either_way() {
    for seed in 0..200 {
        let (mut model, mut tokens) = (Model::new(limits()), Tokens::default());
        let (mut calls, mut answers): (Vec<Call>, Vec<Answer>) = (Vec::new(), Vec::new());
        for Step { number, now, command } in generate(seed) {
            let command = tokens.command(&command);
            let (answer, _) = model.run(now, &command);
            tokens.learn(number, &answer);
            let by = (number % 5 == 0).then(|| "ana".into());
            calls.push(Call { now: (number % 3 > 0).then_some(now), command, by });
            answers.push(answer);
        }
        let request = Request::Batch(calls);
        let one_by_one = wire::encode_value(&(wire::VERSION, &request));
        for bytes in [&request.encode(), &one_by_one] {
            assert_eq!(Request::decode(bytes).expect("it was just written"), request, "seed {seed}");
        }
        let read = wire::decode_value::<(u8, Request)>(&one_by_one).expect("serde reads it too");
        assert_eq!(read.1, request, "seed {seed}");

        let bytes = wire::encode_answers(&answers);
        let pieces = wire::AnswerPieces::new(answers.clone());
        let mut in_pieces = Vec::new();
        assert!((0..).find(|number| !pieces.write(*number, &mut in_pieces)).is_some());
        assert_eq!(in_pieces, bytes);
        assert_eq!(bytes, wire::encode(&answers), "seed {seed}");
        assert_eq!(wire::decode_answers(&bytes).expect("they were just written"), answers, "seed {seed}");
        assert_eq!(
            wire::decode::<Vec<Answer>>(&bytes).expect("serde reads them too"),
            answers,
            "seed {seed}"
        );
    }
}

/// Whatever bytes come, they are read or refused, and what is read can be written again.
#[test]
fn bytes_that_were_tampered_with_are_read_or_refused() {
    let mut rng = fastrand::Rng::with_seed(7);
    for seed in 0..40 {
        let calls: Vec<Call> = generate(seed)
            .into_iter()
            .take(40)
            .map(|step| Call { by: step.by(), ..Call::at(step.now, step.command) })
            .collect();
        let good = Request::Batch(calls).encode();
        for _ in 0..200 {
            let mut bytes = good.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(bytes.len() / 2..=bytes.len()));
            if let Ok(read) = Request::decode(&bytes) {
                assert_eq!(Request::decode(&read.encode()).expect("it was just written"), read);
            }
            let _ = wire::decode_answers(&bytes);
        }
    }
}
