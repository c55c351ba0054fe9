//! The names of threads, for probes that use them. The control block has each thread's name from the start. Probes on
//! libc's functions that set names keep it right.

use hodo_codegen::native::detour::{
    Action, Arithmetic, Bits, Block, Comparison, Deed, Fetch, Source, Test,
};
use hodo_probe_syntax::{Action as Wanted, Definition, Expr, Source as From};
use hodo_trace::format::tcb;

use super::Probes;
use crate::arch::NATIVE;

/// `PR_SET_NAME` of `prctl`.
const SET_NAME: u64 = 15;

/// More bytes than the block of a thread has, and less than there are from one to another: stacks lie between.
const LONGEST_BLOCK: u64 = 4096;

/// The functions that give names, in libc by whichever name.
const FUNCTIONS: [&str; 2] = [
    "p:hodo/comm libc:prctl",
    "p:hodo/comm libc:pthread_setname_np",
];

impl Probes {
    /// If a definition uses names, the functions that give names get probes, too.
    pub fn follow_names(&mut self) {
        if !self.definitions.iter().any(uses_names) {
            return;
        }
        let functions = (FUNCTIONS.iter()).filter_map(|text| hodo_probe_syntax::parse(text).ok());
        let first = self.definitions.len();
        for (definition, text) in functions.zip(FUNCTIONS) {
            self.texts.push(text.to_owned());
            self.add(definition);
        }
        self.names = first..self.definitions.len();
    }

    /// Whether this is one of these probes.
    pub(super) fn follows_names(&self, definition: usize) -> bool {
        self.names.contains(&definition)
    }
}

/// What such a probe does: the thread's own new name is copied.
pub(super) fn follow(symbol: &str) -> Action {
    let argument = |number: usize| Source::Register(NATIVE.arguments[number]);
    let (value, same) = match symbol {
        "prctl" => {
            let whole = |value| {
                let bits = Bits {
                    width: 32,
                    ..Bits::ALL
                };
                Box::new(Test::Value(value, bits))
            };
            let same = Test::Compare(Comparison::Equal, false, whole(0), whole(1));
            (Fetch::Word(Source::Number(SET_NAME)), same)
        }
        // The number of a thread is the address of its block, to which the thread pointer points, or to its end.
        _ => {
            let whole = |value| Box::new(Test::Value(value, Bits::ALL));
            let distance = Test::Combine(Arithmetic::Subtract, false, whole(1), whole(0));
            let most = Test::Number(LONGEST_BLOCK);
            let same = Test::Compare(Comparison::Less, false, distance.into(), most.into());
            (Fetch::Word(Source::ThreadPointer), same)
        }
    };
    Action::Block(Box::new(Block {
        base: tcb::BASE as u32,
        switch: None,
        values: vec![Fetch::Word(argument(0)), value],
        condition: Some(same),
        deeds: vec![Deed::Name(argument(1), tcb::COMM as u32)],
    }))
}

/// Whether a definition has something to do with names of threads.
fn uses_names(definition: &Definition) -> bool {
    fn within(expr: &Expr) -> bool {
        match expr {
            Expr::Comm => true,
            Expr::Unary(_, operand) => within(operand),
            Expr::Binary(_, left, right) => within(left) || within(right),
            _ => false,
        }
    }
    let key = |action: &Wanted| match action {
        Wanted::Hist(hist) => hist.keys.iter().any(|key| key.value == Expr::Comm),
        _ => false,
    };
    definition.args.iter().any(|arg| arg.source == From::Comm)
        || definition.condition.as_ref().is_some_and(within)
        || definition.actions.iter().any(key)
}
