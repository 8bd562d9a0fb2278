/*
 * The protocol of updraft_learner.shared, with a crash at each step: docs/design/0039-shared-memory.md.
 *
 *   spin -a shared_memory.pml && cc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan         no deadlock, exactly once
 *   spin -a -DENDS shared_memory.pml && cc -O2 -DNFAIR=4 -DCOLLAPSE -o pan pan.c && ./pan -a -f    training ends
 *
 * -DSYNC is synchronous training; without it each gradient is applied by itself. tests/learner/test_shared_memory_model.py
 * runs both. -DSTEPS, -DCRASHES and -DSTALENESS set the size. Each -DBROKEN_... below is a mistake that must be found.
 *
 * Variables have the names of images/learner/updraft_learner/shared/memory.py. STORE is one store of a word, or one half
 * of the store of an array: arrays are torn in between. After each, the process may be killed and started again, without
 * its own variables. Weights stand for weights and moments; each chunk holds the set of gradients that were applied to
 * it, as bits. Applying one twice is not repeatable, and an assertion.
 */

#ifndef STEPS
#define STEPS 3
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef STALENESS
#define STALENESS 2
#endif
#define LEARNERS 2
#define CHUNKS 2
#define SLOTS 2
#define ALL 7
#define TORN 7

#define SLOT(learner, number) slots[(learner) * SLOTS + (number) % SLOTS]
#define BIT(learner, number) (1 << ((learner) * STEPS + (number) - 1))
#define STORE(what) atomic { what; if :: crashes > 0 -> crashes--; goto start :: true fi }

byte pushed[LEARNERS];
byte applied[LEARNERS];
byte slots[LEARNERS * SLOTS];       /* the number of the gradient in it, or TORN */
byte intent;                        /* number * 8 + learner + 1, or + ALL */
byte intent_update;
byte progress;
byte updates;
byte weights[CHUNKS];
bool weights_torn[CHUNKS];
byte undo;
bool undo_torn;

byte crashes = CRASHES;
byte finished;

/* Publisher.may_start. Counters only grow, so reading them one after the other is as good as all at once. */
#ifdef SYNC
#define MAY_START(number) (applied[0] + 1 >= number && applied[1] + 1 >= number)
#else
#define MAY_START(number) (applied[0] + 1 + STALENESS >= number && applied[1] + 1 + STALENESS >= number)
#endif

proctype learner(byte me) {
start:
  do
  :: pushed[me] == STEPS -> break
  :: pushed[me] < STEPS && MAY_START(pushed[me] + 1) ->
#ifdef SYNC
    /* The weights that it reads have all gradients of the steps before, and no other. */
    assert(!weights_torn[0] && weights[0] == ((1 << pushed[me]) - 1) * (1 + (1 << STEPS)));
    assert(!weights_torn[1] && weights[1] == ((1 << pushed[me]) - 1) * (1 + (1 << STEPS)));
#endif
#ifndef BROKEN_SLOT
    applied[me] + SLOTS >= pushed[me] + 1;  /* Publisher.may_publish */
#endif
#ifdef BROKEN_PUSH
    STORE(pushed[me] = pushed[me] + 1);
    STORE(SLOT(me, pushed[me]) = pushed[me])
#else
    STORE(SLOT(me, pushed[me] + 1) = TORN);
    STORE(SLOT(me, pushed[me] + 1) = pushed[me] + 1);
    STORE(pushed[me] = pushed[me] + 1)
#endif
  od;
  finished++
}

/* What the server reads of the slots while it works. */
inline check_slots() {
  assert(who == 2 || SLOT(0, number) == number);
  assert(who == 1 || SLOT(1, number) == number)
}

proctype server() {
  byte who, number, chunk, bits;
  bool whole;
start:
  atomic {
    who = 0; number = 0; chunk = 0; bits = 0; whole = 0;
    /* RangeServer.recover */
    who = intent % 8; number = intent / 8;
    if
    :: intent == 0 -> goto turn
    :: intent > 0 && (who == 2 || applied[0] >= number) && (who == 1 || applied[1] >= number) -> goto turn
    :: else -> goto work
    fi
  };

turn:
  /* RangeServer.turn; the guards are RangeServer._choose. It waits for any gradient, not for one. */
  atomic {
    chunk = 0; bits = 0;
    if
    :: applied[0] == STEPS && applied[1] == STEPS -> goto over
#ifdef SYNC
    :: pushed[0] > applied[0] && pushed[1] > applied[1] -> who = ALL; number = applied[0] + 1
#else
    :: pushed[0] > applied[0] -> who = 1; number = applied[0] + 1
    :: pushed[1] > applied[1] -> who = 2; number = applied[1] + 1
#endif
    fi
  };
#ifdef BROKEN_INTENT
  STORE(intent = number * 8 + who);
  STORE(intent_update = updates + 1);
  STORE(progress = 0);
#else
  STORE(intent_update = updates + 1);
  STORE(progress = 0);
  STORE(intent = number * 8 + who);
#endif

work:
  atomic {
    chunk = progress / 2;
    whole = progress % 2;
    bits = ((who == 2) -> 0 : BIT(0, number)) | ((who == 1) -> 0 : BIT(1, number))
  };
  do
  :: chunk == CHUNKS -> break
  :: chunk < CHUNKS ->
    if
    :: whole ->
      whole = 0;
#ifndef BROKEN_RESTORE
      STORE(weights_torn[chunk] = 1);
      assert(!undo_torn);
      STORE(weights[chunk] = undo; weights_torn[chunk] = 0)
#endif
    :: else ->
      assert(!weights_torn[chunk]);
      atomic {  /* nobody else reads the undo copy */
        STORE(undo_torn = 1);
        STORE(undo = weights[chunk]; undo_torn = 0)
      };
#ifndef BROKEN_UNDO
      STORE(progress = 2 * chunk + 1)
#endif
    fi;
    check_slots();
    assert(!weights_torn[chunk] && (weights[chunk] & bits) == 0);  /* not doubled */
#ifdef SYNC
    assert(intent_update == number);
#else
    assert(intent_update == applied[0] + applied[1] + 1);
#endif
    STORE(weights_torn[chunk] = 1);
    check_slots();
    STORE(weights[chunk] = weights[chunk] | bits; weights_torn[chunk] = 0);
    STORE(progress = 2 * chunk + 2);
    chunk++
  od;
#ifdef BROKEN_UPDATES
  STORE(updates = updates + 1);
#else
  STORE(updates = intent_update);
#endif
  /* RangeServer._finish */
  if
  :: who != 2 -> STORE(applied[0] = number)
  :: else
  fi;
  if
  :: who != 1 -> STORE(applied[1] = number)
  :: else
  fi;
  goto turn;

over:
  /* Nothing is lost, and each update was counted. */
  assert(!weights_torn[0] && weights[0] == (1 << (LEARNERS * STEPS)) - 1);
  assert(!weights_torn[1] && weights[1] == (1 << (LEARNERS * STEPS)) - 1);
#ifdef SYNC
  assert(updates == STEPS);
#else
  assert(updates == LEARNERS * STEPS);
#endif
  finished++
}

init {
  atomic { run server(); run learner(0); run learner(1) }
}

#ifdef ENDS
ltl ends { <> (finished == LEARNERS + 1) }
#endif
