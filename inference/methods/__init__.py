"""What an agent remembers and how it uses it: MIA, and the methods it is compared with, all on one loop.

Prompts, tools, search, limits and sampling are the same for all; `config.TRAITS` says in which of these they differ.
"After" is after each run, "before" is before the first turn of it. The Manager writes what a model has to write.

    method         writes, and when                              reads, and who is shown it          source
    direct         nothing; no tools either                      nothing                             paper, table 3
    react          nothing                                       nothing                             Base
    plan_only      nothing                                       nothing; the Planner plans          paper, table 5 [1]
    rag_traces     after any run: its conversation               before: k nearest → Executor        Trace
    rag_summaries  after any run: MIA's workflow of it           before: k nearest → Executor        Trace
    mem0           after any run: facts, by the package          before: k facts → Executor          2504.19413; Mem0
    amem           after any run: a note with keywords, tags,    before: k nearest notes and those   2502.12110; a-mem
                   context, links; neighbours are rewritten      linked with them → Executor
    expel          after a judged run: the trial; rules by       before: all rules by votes, k       2308.10144; Expel
                   ADD, EDIT, AGREE, REMOVE                      nearest successes → Executor
    reasoningbank  after a judged run: up to three lessons       before: lessons of the k nearest    2509.25140;
                   from a success or a failure                   runs → Executor                     ReasoningBank
    memento        after a judged run: question, plan, outcome   before: k nearest cases → Planner   2508.16153; Memento
    mia            after any run: its workflow; credit for       before: the best of each outcome    2604.04503, §3
                   what was shown, when judged                   in the question's bucket → Planner
    mia_unsupervised  as mia, but a panel judges                 as mia                              2604.04503, table 7

Numbers are those of arXiv, names those of folders of the original. [1] The original's plan-only server could not be
used with its client. "Nearest" is by cosine of the question, with the caption of its picture if it has one, under the
encoder that all share; notes that stem from the question being asked are left out, which the sources do not do. What a
run is judged by is `method.feedback`; a run that nobody judged is learned only where "any run" is written. A final
answer is kept where the source keeps it (conversations: rag_traces, mem0, amem, the examples of expel) and blotted out
elsewhere; a gold answer is never within reach of a method. `agent.reflect` works with all of them.
"""
