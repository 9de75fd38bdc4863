//! `dag_jsonl`: sessions that fork and spawn others, one a line.
//!
//! A request's body has its ancestors' authored turns: those before it in its session and, in a forked session, those of its
//! parent up to the fork. Live answers are never spliced in; `--assistant synth` puts synthesized ones between the turns. Each
//! request says which must be answered before it: the turn before, and at a join all that were spawned for it. A session that
//! several others start is played once for each.
//!
//! Sessions refer to each other by name and in any order, so the whole file is held while it is read.

use std::{borrow::Cow, collections::HashMap, io::Read as Input};

use super::{
    ReadOptions,
    fields::{Fields, Read, Stop, messages, wrong},
    lines,
    multi_turn::ANSWER_TOKENS,
};
use crate::data::{
    Error,
    error::Place,
    json::{Kind, Value},
    limits::HELD_BYTES_MAX,
    record::{Payload, Record, Sink, Turn},
};

/// Forks and spawns below each other. Real files have a handful; the bound keeps the stack small.
const NESTED_MAX: usize = 512;
/// Requests of one file: sessions that start each other many times multiply.
const REQUESTS_MAX: u64 = 50_000_000;

static SESSION: [&str; 11] = [
    "session_id",
    "turns",
    "context_mode",
    "pre_session_spawns",
    "orchestrator",
    "spawns",
    "rounds",
    "think_time_ms",
    "think_time_sigma",
    "think_time_min_ms",
    "think_time_max_ms",
];
static TURN: [&str; 8] = ["messages", "tools", "model", "max_tokens", "extra", "forks", "spawns", "delay"];

/// A session by its place in the file.
type Id = usize;

struct Session<'a> {
    name: Cow<'a, str>,
    line: u64,
    isolated: bool,
    before: Vec<Cow<'a, str>>,
    plan: Plan<'a>,
}

enum Plan<'a> {
    Turns(Vec<Ask<'a>>),
    /// Sends nothing itself. Rounds follow each other when all of the one before is done; without `gated` nobody waits.
    Orchestrator {
        rounds: Vec<(Vec<Cow<'a, str>>, u64)>,
        gated: bool,
    },
}

/// One turn.
struct Ask<'a> {
    messages: Value<'a>,
    tools: Option<Value<'a>>,
    model: Option<Cow<'a, str>>,
    cap: Option<u32>,
    extra: Option<Value<'a>>,
    delay_ns: u64,
    /// Children and whether the parent goes on.
    forks: Vec<(Cow<'a, str>, bool)>,
    /// Children and the turn that waits for them.
    spawns: Vec<(Cow<'a, str>, Option<usize>)>,
}

pub(super) fn document(
    options: &ReadOptions,
    file: &str,
    input: &mut dyn Input,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    let mut text = Vec::new();
    let mut places = Vec::new();
    lines::each_of(file, input, |number, line| {
        places.push((number, text.len(), text.len() + line.len()));
        text.extend_from_slice(line);
        match text.len() as u64 > HELD_BYTES_MAX {
            true => Err(Error::dataset(
                Place::file(file),
                format!("over {HELD_BYTES_MAX} bytes, which dag_jsonl holds at once"),
            )),
            false => Ok(()),
        }
    })?;
    let mut sessions: Vec<Session<'_>> = Vec::new();
    let mut ids: HashMap<String, Id> = HashMap::new();
    for (line, start, end) in places {
        let read = session(line, &text[start..end]).and_then(|session| {
            match ids.insert(session.name.to_string(), sessions.len()) {
                None => Ok(session),
                Some(first) => {
                    ids.insert(session.name.to_string(), first);
                    let first = sessions[first].line;
                    Err(Stop::Bad(format!("session_id is \"{}\", which line {first} has", session.name)))
                }
            }
        });
        match read {
            Ok(session) => sessions.push(session),
            Err(Stop::Bad(what)) => sink.bad(Place::line(file, line), what)?,
            Err(Stop::End(error)) => return Err(error),
        }
    }
    let at = |id: Id, what: String| Error::dataset(Place::line(file, sessions[id].line), what);
    let links = links(&sessions, &ids).map_err(|(id, what)| at(id, what))?;
    let mut player =
        Player { options, sessions: &sessions, ids: &ids, times: vec![0; sessions.len()], next: 0, nested: 0, sink };
    for id in (0..sessions.len()).filter(|&id| !links.started[id]) {
        player.play(id, Start::default()).map_err(|stop| match stop {
            Stop::Bad(what) => at(id, what),
            Stop::End(error) => error,
        })?;
    }
    Ok(())
}

fn unknown(known: &[&str], object: Value<'_>, place: &str) -> Read<()> {
    match object.members().find(|(key, _)| !known.contains(&key.as_ref())) {
        Some((key, _)) => Err(Stop::Bad(format!("{place}unknown key \"{key}\", expected {}", known.join(", ")))),
        None => Ok(()),
    }
}

fn session(line: u64, text: &[u8]) -> Read<Session<'_>> {
    let fields = Fields::parse(&SESSION, text)?;
    let whole = Value::parse(text).map_err(|e| Stop::Bad(e.what.into()))?;
    unknown(&SESSION, whole, "")?;
    let name = fields.string("session_id")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Stop::bad("no session_id, which every session has"))?;
    let isolated = match fields.string("context_mode")?.as_deref() {
        None | Some("deltas_without_responses") => false,
        Some("message_array_with_responses") => true,
        Some(other) => {
            let what = "expected deltas_without_responses or message_array_with_responses";
            return Err(Stop::Bad(format!("context_mode is \"{other}\", {what}")));
        }
    };
    let before = names("pre_session_spawns", fields.get("pre_session_spawns"))?;
    let orchestrator = match fields.get("orchestrator") {
        None => false,
        Some(v) => v.bool().ok_or_else(|| wrong("orchestrator", v, "true or false"))?,
    };
    let plan = if orchestrator {
        if !before.is_empty() {
            return Err(Stop::bad(
                "pre_session_spawns is given for an orchestrator, expected it for sessions with turns",
            ));
        }
        rounds(&fields)?
    } else {
        for only in ["spawns", "rounds", "think_time_ms", "think_time_sigma", "think_time_min_ms", "think_time_max_ms"]
        {
            if fields.has(only) {
                return Err(Stop::Bad(format!(
                    "{only} is given for a session with turns, expected it with \"orchestrator\":true"
                )));
            }
        }
        Plan::Turns(turns(&fields)?)
    };
    Ok(Session { name, line, isolated, before, plan })
}

fn rounds<'a>(fields: &Fields<'a, 11>) -> Read<Plan<'a>> {
    if fields.array("turns")?.is_some_and(|turns| turns.elements().next().is_some()) {
        return Err(Stop::bad("turns are given for an orchestrator, expected none"));
    }
    if let Some(sigma) = fields.get("think_time_sigma") {
        let what = "expected none: a replay waits the same time in every run; give think_time_ms";
        return Err(Stop::Bad(format!("think_time_sigma is {}, {what}", sigma.text())));
    }
    let think = fields.time_ns("think_time_ms", 6)?.unwrap_or(0);
    let shared = names("spawns", fields.get("spawns"))?;
    let none = || Stop::bad("no spawns, which an orchestrator needs");
    let (rounds, gated) = match fields.get("rounds") {
        None if shared.is_empty() => return Err(none()),
        None => (vec![(shared, 0)], false),
        Some(v) if v.kind() == Kind::Array => {
            let mut rounds = Vec::new();
            for (i, round) in v.elements().enumerate() {
                let place = format!("rounds[{i}]");
                if round.kind() != Kind::Object {
                    return Err(wrong(&place, round, "an object with spawns"));
                }
                unknown(&["spawns", "think_time_ms"], round, &format!("{place}: "))?;
                let own = Fields::parse(&["spawns", "think_time_ms"], round.bytes())?;
                let spawns = names(&format!("{place}.spawns"), own.get("spawns"))?;
                if spawns.is_empty() {
                    return Err(Stop::Bad(format!("{place} has no spawns")));
                }
                rounds.push((spawns, own.time_ns("think_time_ms", 6)?.unwrap_or(think)));
            }
            (rounds, true)
        }
        Some(v) => match v.integer() {
            Some(n @ 1..=1_000_000) if !shared.is_empty() => (vec![(shared, think); n as usize], true),
            Some(1..=1_000_000) => return Err(none()),
            _ => return Err(wrong("rounds", v, "a number from 1 to 1000000, or a list of rounds")),
        },
    };
    Ok(Plan::Orchestrator { rounds, gated })
}

fn names<'a>(name: &str, value: Option<Value<'a>>) -> Read<Vec<Cow<'a, str>>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    if value.kind() != Kind::Array {
        return Err(wrong(name, value, "a list of session ids"));
    }
    let one = |v: Value<'a>| v.string().filter(|s| !s.is_empty()).ok_or_else(|| wrong(name, v, "a session id"));
    value.elements().map(one).collect()
}

fn turns<'a>(fields: &Fields<'a, 11>) -> Read<Vec<Ask<'a>>> {
    let list = fields.array("turns")?.ok_or_else(|| Stop::bad("no turns, expected a list of them"))?;
    let count = list.elements().count();
    if count == 0 {
        return Err(Stop::bad("turns is [], expected at least one turn"));
    }
    let mut turns = Vec::new();
    for (i, turn) in list.elements().enumerate() {
        turns.push(ask(turn, i, count).map_err(|stop| match stop {
            Stop::Bad(what) => Stop::Bad(format!("turns[{i}]: {what}")),
            end @ Stop::End(_) => end,
        })?);
    }
    Ok(turns)
}

fn ask(turn: Value<'_>, index: usize, count: usize) -> Read<Ask<'_>> {
    if turn.kind() != Kind::Object {
        return Err(wrong("a turn", turn, "an object"));
    }
    unknown(&TURN, turn, "")?;
    let fields = Fields::parse(&TURN, turn.bytes())?;
    let array = fields.get("messages").ok_or_else(|| Stop::bad("no messages"))?;
    messages("messages", array)?;
    let cap = match fields.tokens("max_tokens")? {
        Some(0) => return Err(Stop::bad("max_tokens is 0, expected 1 or more")),
        cap => cap,
    };
    let mut forks = Vec::new();
    for fork in fields.array("forks")?.into_iter().flat_map(Value::elements) {
        let child = fork.string().or_else(|| fork.member("child")?.string()).filter(|child| !child.is_empty());
        let child = child.ok_or_else(|| wrong("forks", fork, "session ids or objects with a child"))?;
        let background = fork.member("background").and_then(Value::bool).unwrap_or(false);
        if !background && index + 1 < count {
            return Err(Stop::Bad(format!(
                "forks to \"{child}\" before the last turn, expected \"background\":true there"
            )));
        }
        forks.push((child, background));
    }
    let mut spawns = Vec::new();
    // Bare ids are joined by the next turn, and by none behind the last.
    let next = (index + 1 < count).then_some(index + 1);
    for spawn in fields.array("spawns")?.into_iter().flat_map(Value::elements) {
        if let Some(child) = spawn.string() {
            spawns.push((child, next));
            continue;
        }
        if spawn.kind() != Kind::Object {
            return Err(wrong("spawns", spawn, "session ids or objects with children"));
        }
        unknown(&["children", "join_at"], spawn, "spawns: ")?;
        let join = match spawn.member("join_at").filter(|v| !v.is_null()) {
            None => next,
            Some(v) => match v.integer().and_then(|n| usize::try_from(n).ok()) {
                Some(join) if join > index && join < count => Some(join),
                _ => return Err(wrong("join_at", v, &format!("a turn from {} to {}", index + 1, count - 1))),
            },
        };
        let children = names("children", spawn.member("children"))?;
        if children.is_empty() {
            return Err(Stop::bad("spawns has no children"));
        }
        spawns.extend(children.into_iter().map(|child| (child, join)));
    }
    let mut all: Vec<_> = forks.iter().map(|f| &f.0).chain(spawns.iter().map(|s| &s.0)).collect();
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Stop::Bad(format!("\"{}\" is started twice", pair[0])));
    }
    let (tools, extra) = (fields.array("tools")?, fields.object("extra")?);
    let (model, delay_ns) = (fields.string("model")?, fields.time_ns("delay", 6)?.unwrap_or(0));
    Ok(Ask { messages: array, tools, model, cap, extra, delay_ns, forks, spawns })
}

/// Who is started by others.
struct Links {
    started: Vec<bool>,
}

/// Checks what sessions say of each other; the error names the session whose line is wrong.
fn links(sessions: &[Session<'_>], ids: &HashMap<String, Id>) -> Result<Links, (Id, String)> {
    let mut started = vec![false; sessions.len()];
    let mut forked_by: Vec<Option<Id>> = vec![None; sessions.len()];
    let mut children: Vec<Vec<Id>> = vec![Vec::new(); sessions.len()];
    let mut background = Vec::new();
    for (id, session) in sessions.iter().enumerate() {
        let find = |name: &str| {
            let found = ids.get(name).copied();
            found.ok_or_else(|| (id, format!("starts \"{name}\", which no line has as its session_id")))
        };
        let mut start = |child: Id| {
            started[child] = true;
            children[id].push(child);
        };
        for name in &session.before {
            let child = find(name)?;
            background.push((id, child));
            start(child);
        }
        match &session.plan {
            Plan::Orchestrator { rounds, .. } => {
                for name in rounds.iter().flat_map(|(spawns, _)| spawns) {
                    start(find(name)?);
                }
            }
            Plan::Turns(turns) => {
                for (name, _) in turns.iter().flat_map(|t| &t.forks) {
                    let child = find(name)?;
                    if let Some(other) = forked_by[child].replace(id) {
                        return Err((
                            id,
                            format!("forks to \"{name}\", which \"{}\" forks to already", sessions[other].name),
                        ));
                    }
                    if sessions[child].isolated {
                        return Err((id, format!("forks to \"{name}\", whose context_mode takes no history")));
                    }
                    start(child);
                }
                for (name, _) in turns.iter().flat_map(|t| &t.spawns) {
                    start(find(name)?);
                }
            }
        }
    }
    if let Some(&(id, child)) = background.iter().find(|(_, child)| forked_by[*child].is_some()) {
        return Err((id, format!("pre_session_spawns starts \"{}\", which is forked to", sessions[child].name)));
    }
    no_cycle(sessions, &children)?;
    for (id, session) in sessions.iter().enumerate() {
        let Plan::Turns(turns) = &session.plan else { continue };
        for (t, turn) in turns.iter().enumerate() {
            let system = |m: Value<'_>| m.member("role").and_then(Value::string).is_some_and(|role| role == "system");
            let allowed = |m: usize| {
                if session.isolated { m == 0 } else { t == 0 && forked_by[id].is_none() }
            };
            if let Some(m) =
                turn.messages.elements().enumerate().position(|(m, message)| system(message) && !allowed(m))
            {
                return Err((
                    id,
                    format!("turns[{t}]: messages[{m}] is a system message, expected one only at the very start"),
                ));
            }
        }
    }
    Ok(Links { started })
}

fn no_cycle(sessions: &[Session<'_>], children: &[Vec<Id>]) -> Result<(), (Id, String)> {
    /// Not seen, on the path, done.
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut state = vec![State::New; sessions.len()];
    for root in 0..sessions.len() {
        let mut path: Vec<(Id, usize)> = Vec::new();
        if state[root] == State::New {
            state[root] = State::Open;
            path.push((root, 0));
        }
        while let Some((id, next)) = path.last_mut() {
            let Some(&child) = children[*id].get(*next) else {
                state[*id] = State::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match state[child] {
                State::Done => {}
                State::New => {
                    state[child] = State::Open;
                    path.push((child, 0));
                }
                State::Open => {
                    let from = path.iter().position(|(id, _)| *id == child).unwrap_or(0);
                    let mut names: Vec<_> = path[from..].iter().map(|(id, _)| sessions[*id].name.as_ref()).collect();
                    names.push(&sessions[child].name);
                    return Err((child, format!("sessions start each other in a circle: {}", names.join(" -> "))));
                }
            }
        }
    }
    Ok(())
}

/// How a session begins.
#[derive(Clone, Default)]
struct Start<'a> {
    /// Turns of its parent, for a fork.
    history: Vec<Turn<'a>>,
    /// Requests that must be answered before its first.
    after: Vec<u64>,
    delay_ns: u64,
    background: bool,
}

struct Player<'p, 'a> {
    options: &'p ReadOptions,
    sessions: &'p [Session<'a>],
    ids: &'p HashMap<String, Id>,
    /// How often each session was played.
    times: Vec<u32>,
    next: u64,
    nested: usize,
    sink: &'p mut dyn Sink,
}

impl<'a> Player<'_, 'a> {
    /// Emits a session and all that it starts; gives the requests that must be answered for it to be done.
    fn play(&mut self, id: Id, start: Start<'a>) -> Read<Vec<u64>> {
        let sessions = self.sessions;
        if self.nested == NESTED_MAX {
            return Err(Stop::Bad(format!("forks and spawns nest over {NESTED_MAX} deep")));
        }
        self.nested += 1;
        let mut name = sessions[id].name.to_string();
        self.times[id] += 1;
        if self.times[id] > 1 {
            name = format!("{name}~{}", self.times[id]);
        }
        for child in &sessions[id].before {
            let at_once = Start { after: start.after.clone(), background: true, ..Start::default() };
            self.play(self.ids[child.as_ref()], at_once)?;
        }
        let done = match &sessions[id].plan {
            Plan::Orchestrator { rounds, gated } => self.orchestrate(rounds, *gated, start),
            Plan::Turns(turns) => self.turns(&name, sessions[id].isolated, sessions[id].line, turns, start),
        };
        self.nested -= 1;
        done
    }

    fn orchestrate(&mut self, rounds: &[(Vec<Cow<'a, str>>, u64)], gated: bool, start: Start<'a>) -> Read<Vec<u64>> {
        let mut after = start.after;
        let mut delay_ns = start.delay_ns;
        for (spawns, think_ns) in rounds {
            let mut done = Vec::new();
            for child in spawns {
                let begin = Start {
                    history: Vec::new(),
                    after: after.clone(),
                    delay_ns: delay_ns + think_ns,
                    background: start.background || !gated,
                };
                done.extend(self.play(self.ids[child.as_ref()], begin)?);
            }
            if gated {
                after = done;
                delay_ns = 0;
            }
        }
        Ok(after)
    }

    fn turns(&mut self, name: &str, isolated: bool, line: u64, turns: &[Ask<'a>], start: Start<'a>) -> Read<Vec<u64>> {
        let Start { mut history, after, delay_ns, background } = start;
        let mut joins: Vec<Vec<u64>> = vec![Vec::new(); turns.len()];
        let mut done = after;
        for (t, turn) in turns.iter().enumerate() {
            let messages = Turn::Messages {
                messages: Cow::Borrowed(turn.messages.bytes()),
                tools: turn.tools.map(|v| Cow::Borrowed(v.bytes())),
            };
            if isolated {
                history.clear();
            }
            history.push(messages);
            let mut record = Record::new(line, Payload::Turns(history.clone()));
            done.append(&mut joins[t]);
            done.sort_unstable();
            done.dedup();
            record.after = Some(Cow::Owned(done));
            record.session = Some(Cow::Borrowed(name));
            let delay_ns = turn.delay_ns + if t == 0 { delay_ns } else { 0 };
            record.delay_ns = (delay_ns > 0).then_some(delay_ns);
            record.output_tokens = turn.cap;
            record.model.clone_from(&turn.model);
            record.extra = turn.extra.map(|v| Cow::Borrowed(v.bytes()));
            record.background = background;
            self.sink.record(record)?;
            let number = self.next;
            self.next += 1;
            if self.next > REQUESTS_MAX {
                return Err(Stop::Bad(format!("sessions start each other into over {REQUESTS_MAX} requests")));
            }
            if self.options.synthesized_answers {
                history.push(Turn::Answer { tokens: turn.cap.unwrap_or(ANSWER_TOKENS) });
            }
            done = vec![number];
            for (child, join) in &turn.spawns {
                let begin = Start { after: vec![number], background: background || join.is_none(), ..Start::default() };
                let ends = self.play(self.ids[child.as_ref()], begin)?;
                if let Some(join) = join {
                    joins[*join].extend(ends);
                }
            }
            let mut forked = Vec::new();
            for (child, goes_on) in &turn.forks {
                let begin = Start {
                    history: history.clone(),
                    after: vec![number],
                    delay_ns: 0,
                    background: background || *goes_on,
                };
                let ends = self.play(self.ids[child.as_ref()], begin)?;
                if !goes_on {
                    forked.extend(ends);
                }
            }
            if !forked.is_empty() {
                done = forked;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Format, parse_document,
        testing::{Kept, document},
    };
    use super::*;

    fn turn(text: &str, more: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]{more}}}"#)
    }

    fn line(name: &str, turns: &[String], more: &str) -> String {
        format!("{{\"session_id\":\"{name}\",\"turns\":[{}]{more}}}\n", turns.join(","))
    }

    /// `number session[history] after` of each record.
    fn shown(kept: &Kept) -> Vec<String> {
        let one = |(i, r): (usize, &Record<'_>)| {
            let Payload::Turns(turns) = &r.payload else { panic!() };
            let history = turns.iter().map(|t| match t {
                Turn::Messages { messages, .. } => {
                    let first = Value::parse(messages).unwrap().elements().next().unwrap();
                    first.member("content").unwrap().string().unwrap().into_owned()
                }
                Turn::Answer { tokens } => format!("+{tokens}"),
                Turn::Content(_) => panic!(),
            });
            let back = if r.background { " background" } else { "" };
            let history = history.collect::<Vec<_>>().join(" ");
            format!("{i} {}[{history}] {:?}{back}", r.session.as_deref().unwrap(), r.after.as_deref().unwrap())
        };
        kept.records.iter().enumerate().map(one).collect()
    }

    fn read(text: &str) -> Result<Kept, String> {
        document(Format::DagJsonl, text.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn spawns_join_the_next_turn_and_forks_take_the_history_along() {
        let text = [
            line("r", &[turn("plan", r#","spawns":["c1","c2"]"#), turn("sum", r#","forks":["f"]"#)], ""),
            line("c1", &[turn("look", r#","max_tokens":8"#), turn("more", "")], ""),
            line("f", &[turn("fork", r#","model":"z","extra":{"a":1},"delay":2.5"#)], ""),
            line("c2", &[turn("see", "")], ""),
        ]
        .concat();
        let kept = read(&text).unwrap();
        assert_eq!(
            shown(&kept),
            [
                "0 r[plan] []",
                "1 c1[look] [0]",
                "2 c1[look more] [1]",
                "3 c2[see] [0]",
                "4 r[plan sum] [0, 2, 3]",
                "5 f[plan sum fork] [4]",
            ]
        );
        assert_eq!(kept.records[1].output_tokens, Some(8));
        assert_eq!((kept.records[5].model.as_deref(), kept.records[5].delay_ns), (Some("z"), Some(2_500_000)));
        let mut synthesized = Kept::default();
        let options = ReadOptions { synthesized_answers: true, ..ReadOptions::default() };
        parse_document(Format::DagJsonl, &options, "f", &mut text.as_bytes(), &mut synthesized).unwrap();
        assert_eq!(shown(&synthesized)[2], "2 c1[look +8 more] [1]");
    }

    #[test]
    fn background_delayed_joins_isolation_and_repeats() {
        let text = [
            line(
                "r",
                &[
                    turn(
                        "a",
                        r#","spawns":[{"children":["c"],"join_at":2}],"forks":[{"child":"f","background":true}]"#,
                    ),
                    turn("b", ""),
                    turn("d", r#","spawns":["c"]"#),
                ],
                r#","pre_session_spawns":["p"]"#,
            ),
            line("c", &[turn("x", "")], ""),
            line("f", &[turn("y", "")], ""),
            line("p", &[turn("z", ""), turn("w", "")], r#","context_mode":"message_array_with_responses""#),
        ]
        .concat();
        assert_eq!(
            shown(&read(&text).unwrap()),
            [
                "0 p[z] [] background",
                "1 p[w] [0] background",
                "2 r[a] []",
                "3 c[x] [2]",
                "4 f[a y] [2] background",
                "5 r[a b] [2]",
                "6 r[a b d] [3, 5]",
                "7 c~2[x] [6] background",
            ]
        );
    }

    #[test]
    fn orchestrators_play_round_after_round() {
        let text = [
            "{\"session_id\":\"o\",\"turns\":[],\"orchestrator\":true,\"spawns\":[\"a\",\"b\"],\"rounds\":2,\"think_time_ms\":5}\n".to_owned(),
            line("a", &[turn("x", "")], ""),
            line("b", &[turn("y", ""), turn("z", "")], ""),
        ]
        .concat();
        let kept = read(&text).unwrap();
        assert_eq!(
            shown(&kept),
            ["0 a[x] []", "1 b[y] []", "2 b[y z] [1]", "3 a~2[x] [0, 2]", "4 b~2[y] [0, 2]", "5 b~2[y z] [4]"]
        );
        assert_eq!((kept.records[3].delay_ns, kept.records[5].delay_ns), (Some(5_000_000), None));
    }

    #[test]
    fn what_sessions_get_wrong_is_told_with_its_line() {
        let one = turn("x", "");
        let fork = |to: &str| turn("x", &format!(r#","forks":["{to}"]"#));
        for (text, want) in [
            (line("a", &[fork("b")], ""), "f:1: starts \"b\", which no line has"),
            (
                line("a", &[fork("b")], "") + &line("b", &[fork("a")], ""),
                "f:1: sessions start each other in a circle: a -> b -> a",
            ),
            (
                line("a", &[fork("c")], "") + &line("b", &[fork("c")], "") + &line("c", std::slice::from_ref(&one), ""),
                "f:2: forks to \"c\", which \"a\" forks to already",
            ),
            (
                line("a", &[fork("c")], "")
                    + &line("c", std::slice::from_ref(&one), r#","context_mode":"message_array_with_responses""#),
                "f:1: forks to \"c\", whose context_mode takes no history",
            ),
            (
                line("a", &[one.clone(), r#"{"messages":[{"role":"system","content":"s"}]}"#.into()], ""),
                "f:1: turns[1]: messages[0] is a system message",
            ),
            (
                line("a", std::slice::from_ref(&one), r#","pre_session_spawns":["c"]"#)
                    + &line("b", &[fork("c")], "")
                    + &line("c", std::slice::from_ref(&one), ""),
                "f:1: pre_session_spawns starts \"c\", which is forked to",
            ),
        ] {
            let got = read(&text).map(|k| shown(&k)).unwrap_err();
            assert!(got.contains(want), "{text}\n got {got}\nwant {want}");
        }
        for (text, want) in [
            (line("a", std::slice::from_ref(&one), r#","x":1"#), "f:1: unknown key \"x\", expected session_id"),
            (line("a", &[turn("x", r#","temperature":1"#)], ""), "f:1: turns[0]: unknown key \"temperature\""),
            (line("a", &[fork("b"), one.clone()], ""), "f:1: turns[0]: forks to \"b\" before the last turn"),
            (
                line("a", &[turn("x", r#","spawns":[{"children":["b"],"join_at":1}]"#)], ""),
                "f:1: turns[0]: join_at is 1",
            ),
            (line("a", &[turn("x", r#","spawns":["b","b"]"#)], ""), "f:1: turns[0]: \"b\" is started twice"),
            (line("a", &[turn("x", r#","max_tokens":true"#)], ""), "f:1: turns[0]: max_tokens is true, expected 0.."),
            (line("a", &[], ""), "f:1: turns is []"),
            (line("", std::slice::from_ref(&one), ""), "f:1: no session_id"),
            (
                line("a", std::slice::from_ref(&one), "") + &line("a", std::slice::from_ref(&one), ""),
                "f:2: session_id is \"a\", which line 1 has",
            ),
            (line("a", std::slice::from_ref(&one), r#","rounds":2"#), "f:1: rounds is given for a session with turns"),
            ("{\"session_id\":\"a\",\"orchestrator\":true}\n".into(), "f:1: no spawns"),
            (
                "{\"session_id\":\"a\",\"orchestrator\":true,\"spawns\":[\"b\"],\"think_time_sigma\":1}\n".into(),
                "f:1: think_time_sigma is 1",
            ),
        ] {
            let got = read(&text).unwrap();
            assert!(got.bad.first().is_some_and(|b| b.contains(want)), "{text}\n got {:?}\nwant {want}", got.bad);
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        let mut text = String::new();
        for k in 0..600 {
            text += &line(&format!("s{k}"), &[turn("x", &format!(r#","spawns":["s{}"]"#, k + 1))], "");
        }
        text += &line("s600", &[turn("x", "")], "");
        assert!(read(&text).map(|_| ()).unwrap_err().contains("nest over 512 deep"));
    }
}
