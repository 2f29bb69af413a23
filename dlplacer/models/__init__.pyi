from .classifiers import inception_v3 as inception_v3
from .recurrent import big_lstm as big_lstm
from .recurrent import gnmt as gnmt
from .small import branches as branches
from .small import mlp as mlp
