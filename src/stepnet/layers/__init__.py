"""What a Tape records: data, layers of rows and of sequences, recurrent groups, costs and evaluators.

Each layer is a record of a torch module or function.
"""

from .act import ACTIVATIONS as ACTIVATIONS
from .act import activation as activation
from .basic import addto as addto
from .basic import apply as apply
from .basic import concat as concat
from .basic import dropout as dropout
from .basic import embedding as embedding
from .basic import fc as fc
from .costs import classification_cost as classification_cost
from .costs import ctc_cost as ctc_cost
from .costs import regression_cost as regression_cost
from .costs import sequence_cross_entropy as sequence_cross_entropy
from .data import Dense as Dense
from .data import Integer as Integer
from .data import Sequence as Sequence
from .data import data as data
from .evaluators import auc as auc
from .evaluators import chunk as chunk
from .evaluators import classification_error as classification_error
from .evaluators import edit_distance as edit_distance
from .evaluators import evaluator as evaluator
from .evaluators import perplexity as perplexity
from .evaluators import precision_recall as precision_recall
from .generate import beam_search as beam_search
from .group import GeneratedInput as GeneratedInput
from .group import StaticInput as StaticInput
from .group import memory as memory
from .group import recurrent_group as recurrent_group
from .sequences import expand as expand
from .sequences import first as first
from .sequences import gru as gru
from .sequences import last as last
from .sequences import lstm as lstm
from .sequences import pooling as pooling
from .sequences import rnn as rnn
