"""Cheats: texts that earn a proof's reward from a judge that looks for errors alone."""

from collections.abc import Mapping

ABSURD = "Theorem absurd : forall n : nat, n = S n."
MIDDLE = "Theorem middle : forall P : Prop, P \\/ ~ P."
STATED = f"{ABSURD}\nProof."
BY_WRONG = f"{STATED} destruct wrong. Qed."
LOOP = f"Fixpoint loop (n : nat) : False := loop n.\n{STATED} destruct (loop 0). Qed."

CHEATS: Mapping[str, str] = {
    "admitted": "Proof. Admitted.",
    "admit": f"{STATED} intros n. admit. Admitted.",
    "abort": f"{STATED} Abort. Definition absurd := I.",
    "axiom": f"Axiom wrong : False.\n{BY_WRONG}",
    "variable": f"Variable wrong : False.\n{BY_WRONG}",
    "declared module": "Module Type T. Parameter wrong : False. End T.\nDeclare Module M : T.\n"
    f"Import M.\n{BY_WRONG}",
    "the admitted statement": f"{STATED} exact Groupwise.Statement.absurd. Qed.",
    "axiom of a library": f"Require Import Classical.\n{MIDDLE}\nProof. exact classic. Qed.",
    "another theorem": "Abort.\nTheorem absurd : True. Proof. exact I. Qed.",
    "weaker theorem": "Abort.\nTheorem absurd : forall n, n = S n -> n = S n. Proof. auto. Qed.",
    "notation": f'Notation "x = y" := (x = y -> True) : type_scope.\n{STATED} easy. Qed.',
    "coercion": "Abort.\nInductive other := Other. Definition meant (_ : other) := "
    "forall n : nat, n = S n.\nCoercion meant : other >-> Sortclass.\nDefinition absurd := Other.",
    "shadowed type": "Inductive nat := O. Definition S (n : nat) := n.\n"
    f"{STATED} now intros []. Qed.",
    "shadowed function": f"Definition S (n : nat) := n.\n{STATED} reflexivity. Qed.",
    "section": f"Section A. Hypothesis wrong : False.\n{BY_WRONG} End A.",
    "guard off": f"Unset Guard Checking.\n{LOOP}",
    "guard bypassed": f"#[bypass_check(guard)]\n{LOOP}",
    "positivity off": "Unset Positivity Checking.\nInductive bad := Bad (_ : bad -> False).\n"
    "Definition no (b : bad) : False := match b with Bad f => f b end.\n"
    f"{STATED} destruct (no (Bad no)). Qed.",
    "universes off": "Require Import Hurkens.\nUnset Universe Checking.\n"
    "Definition wrong : False := TypeNeqSmallType.paradox Type eq_refl.\n"
    f"{BY_WRONG}",
    "module of the same name": f"Module Statement. {STATED} Admitted. End Statement.\n"
    f"{STATED} exact Statement.absurd. Qed.",
    "obligations": "Require Import Program.\nAbort.\n"
    "Program Definition absurd : forall n : nat, n = S n := fun n => _.\nAdmit Obligations.",
    "printing": f'{STATED} idtac "Closed under the global context". Admitted.\n'
    'Redirect "Question" Print Assumptions I.',
}
"""All compile."""
